//! Timing inside a stopped program: the palette mapped there, and trials as orders.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use superhue_color::Page;
use superhue_color::oracles::{Lines, Palette, Probe, SharedPalette, Usual};

use superhue_model::HUGE_PAGE_SIZE;

use crate::calls::{
    MAP_FIXED, MAP_PRIVATE_ANONYMOUS, MAP_SHARED, PR_GET_TSC, PROT_READ, SYS_MMAP, SYS_PRCTL,
};
use crate::desk::{AT_CPU, AT_TICKS, Keep, Order, PAPER, PAPER_WORDS};
use crate::inside::Inside;
use crate::stop::Stopped;

/// Words on the paper before the targets: offsets of lines, and the spare one.
const LINE_WORDS: usize = Lines::COUNT + 1;

/// Gives the program descriptors of ours, for the time of the visit; under which numbers.
///
/// # Errors
/// That of a call that failed: the program may have no number left.
pub(crate) fn hand_over(
    inside: &mut Inside,
    stopped: &mut Stopped,
    pidfd: BorrowedFd<'_>,
    files: &[BorrowedFd<'_>],
) -> Result<Vec<u64>, Errno> {
    let pair = inside.order(stopped, Order::Pair, &[], &[])?;
    pair.result()?;
    let (theirs, ours) = (pair.argument(0), pair.argument(1));
    inside.has_descriptor(theirs);
    inside.has_descriptor(ours);
    let number = i32::try_from(ours).map_err(|_| Errno::BADF)?;
    let socket = pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())?;
    send(&socket, files)?;
    let fetched = inside.order(stopped, Order::Fetch, &[theirs], &[])?;
    let count = usize::try_from(fetched.result()?).unwrap_or(0);
    let numbers: Vec<u64> = (1..=count.min(3)).map(|at| fetched.argument(at)).collect();
    for &number in &numbers {
        inside.has_descriptor(number);
    }
    for socket in [theirs, ours] {
        drop_descriptor(inside, stopped, socket)?;
    }
    if numbers.len() < files.len() {
        Err(Errno::MFILE)
    } else {
        Ok(numbers)
    }
}

/// Closes a descriptor of the program that was made for the visit.
pub(crate) fn drop_descriptor(
    inside: &mut Inside,
    stopped: &mut Stopped,
    descriptor: u64,
) -> Result<(), Errno> {
    inside
        .system_call(
            stopped,
            0,
            [descriptor, 0, 0, 0, 0, 0],
            Keep::DropDescriptor,
        )
        .map(drop)
}

fn send(socket: &OwnedFd, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    sendmsg(
        socket,
        &[IoSlice::new(&[1])],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map(drop)
}

/// Maps the palette's file in the program, from its descriptor there.
///
/// # Errors
/// `EPERM`: the program may not read the clock. Else that of `mmap(2)`.
pub(crate) fn map_palette(
    inside: &mut Inside,
    stopped: &mut Stopped,
    palette: &SharedPalette,
    descriptor: u64,
) -> Result<Palette, Errno> {
    let word = inside.paper();
    let asked = [PR_GET_TSC, word, 0, 0, 0, 0];
    if inside
        .system_call(stopped, SYS_PRCTL, asked, Keep::Nothing)
        .is_ok()
    {
        let mut mode = [0];
        inside.read(PAPER, &mut mode)?;
        // An int: the lower half.
        if mode[0] & 0xffff_ffff != u64::from(libc::PR_TSC_ENABLE.cast_unsigned()) {
            return Err(Errno::PERM);
        }
    }
    // At a multiple of 2 MiB, so that huge pages of the file are mapped by one entry each.
    let length = palette.length() as u64;
    let room = [
        0,
        length + HUGE_PAGE_SIZE,
        0,
        MAP_PRIVATE_ANONYMOUS,
        u64::MAX,
        0,
    ];
    let room = inside.system_call(stopped, SYS_MMAP, room, Keep::Mapping)?;
    let base = room.next_multiple_of(HUGE_PAGE_SIZE);
    let arguments = [
        base,
        length,
        PROT_READ,
        MAP_SHARED | MAP_FIXED,
        descriptor,
        0,
    ];
    inside.system_call(stopped, SYS_MMAP, arguments, Keep::Nothing)?;
    // SAFETY: mapped there until the visit ends, and used with `InsideProbe` alone.
    unsafe { palette.mapped_at(base) }.ok_or(Errno::INVAL)
}

/// Trials inside the program. Once one fails for good, all do.
pub(crate) struct InsideProbe<'a> {
    pub(crate) inside: &'a mut Inside,
    pub(crate) stopped: &'a mut Stopped,
    pub(crate) usual: &'a mut Usual,
    /// Nothing is timed after.
    pub(crate) until: Instant,
    /// Pages asked about between two looks at the clock.
    pub(crate) chunk: usize,
    /// What the first pages may take even if there is no time left.
    pub(crate) least: Duration,
    pub(crate) failure: Option<Errno>,
}

impl Probe for InsideProbe<'_> {
    fn trial(
        &mut self,
        lines: &Lines,
        targets: &[Page],
        evictors: &[Page],
        times: &mut [u32],
    ) -> bool {
        times.fill(0);
        let words = LINE_WORDS + targets.len() + evictors.len();
        if words > PAPER_WORDS || self.is_over() {
            // Nothing was pushed out, and so no color is told; a disturbed trial would be made again and again.
            return true;
        }
        let mut paper = Vec::with_capacity(words);
        paper.extend(lines.offsets.iter().map(|offset| u64::from(*offset)));
        paper.push(u64::from(lines.spare()));
        paper.extend(
            targets
                .iter()
                .chain(evictors)
                .map(|page| page.address() as u64),
        );
        let counts = [targets.len() as u64, evictors.len() as u64];
        let mut ticks = vec![0; targets.len()];
        let answer = (self.inside)
            .order(self.stopped, Order::Trial, &counts, &paper)
            .and_then(|answer| {
                self.inside
                    .read(PAPER + LINE_WORDS as u64 * 8, &mut ticks)?;
                Ok(answer)
            });
        let answer = match answer {
            Ok(answer) => answer,
            Err(errno) => {
                self.failure = Some(errno);
                return false;
            }
        };
        for (time, ticks) in times.iter_mut().zip(ticks) {
            *time = u32::try_from(ticks).unwrap_or(u32::MAX);
        }
        let took = answer.words[AT_TICKS + 1].saturating_sub(answer.words[AT_TICKS]);
        let (before, after) = (answer.words[AT_CPU], answer.words[AT_CPU + 1]);
        let accesses = (targets.len() * 3 + evictors.len() * 2) * Lines::COUNT;
        self.usual.is(took, accesses) && before == after
    }

    fn is_over(&self) -> bool {
        self.failure.is_some() || Instant::now() >= self.until
    }

    fn chase(&mut self, _: &[Page], _: u64) -> Option<f64> {
        None
    }
}
