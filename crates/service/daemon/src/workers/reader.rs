//! The worker that reads facts about processes: start, user, program.
//!
//! The worker gets many questions at a time, and answers them in one message. If one process holds it up, that message is lost: another reader gets
//! the other questions again, and that process is left alone.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;
use superhue::cpu_time;
use superhue::held_up::SleepLimits;
use superhue_procfs::Roots;
use superhue_procfs::cgroup::path_of_process;
use superhue_procfs::process::{effective_user, stat};
use superhue_sys::busy;

use super::wire::{Answers, ProcessAnswer, Question, Questions, Task};
use super::{Channel, WorkError, Worker};

/// Everything that is read takes microseconds.
const READ_SLEEP_LIMITS: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_millis(100),
    in_files: Duration::from_millis(500),
};

/// Time between two looks at a reader that has not answered.
const LOOK: Duration = Duration::from_millis(50);

/// Time after which it is given up for any reason: it may have been stopped.
const AT_MOST: Duration = Duration::from_secs(5);

/// Maximum number of questions in one message.
const AT_A_TIME: usize = 64;

/// Maximum number of readers that were given up and still sleep. No more are started then.
const MOST_LEFT: usize = 4;

/// Pause after a reader could not be started.
const AFTER_TROUBLE: Duration = Duration::from_secs(5);

/// Capabilities for reading other users' processes.
const NEEDED: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// Answers questions of process `daemon` until it closes the connection.
pub(super) fn serve(channel: &mut Channel, roots: &Roots, daemon: u32) -> Result<(), WorkError> {
    while let Some(Questions(all)) = channel.wait_for()? {
        let begun = cpu_time();
        let all = (all.iter())
            .map(|question| answer(roots, daemon, question))
            .collect();
        busy::note(0);
        let cost = cpu_time().saturating_sub(begun);
        channel.say(&Answers { all, cost });
        while !channel.pending.is_empty() && !channel.is_over {
            let mut room = [PollFd::new(&channel.socket, PollFlags::OUT)];
            let _ = poll(&mut room, None);
            channel.flush();
        }
    }
    Ok(())
}

/// Reads one process.
fn answer(roots: &Roots, daemon: u32, question: &Question) -> ProcessAnswer {
    let pid = question.pid;
    let mut answered = ProcessAnswer {
        pid,
        user: effective_user(roots, pid),
        ..ProcessAnswer::default()
    };
    if question.cgroup {
        answered.cgroup = path_of_process(roots, pid).ok().flatten();
    }
    if question.in_brief || answered.user.is_none() {
        return answered;
    }
    let Ok(before) = stat(roots, pid) else {
        return answered;
    };
    // The fork server is a child of the daemon, workers are its children.
    let server = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    let server = server.and_then(|pid| u32::try_from(pid).ok());
    let is_ours = pid == daemon || before.parent == daemon || Some(before.parent) == server;
    if before.is_kernel_thread() || before.has_ended() || is_ours {
        return answered;
    }
    if question.executable {
        let link = fs::read_link(roots.of_process(pid, "exe")).ok();
        answered.executable = link.map(|path| path.into_os_string().into_vec());
        // The reads before may have waited: the number could belong to another process by now.
        let now = stat(roots, pid).ok().map(|stat| stat.start_ticks);
        answered.start_ticks = now.filter(|&now| now == before.start_ticks);
    } else {
        answered.start_ticks = Some(before.start_ticks);
    }
    answered
}

/// Result of questions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReaderOutcome {
    /// Answers, and the CPU time that they took.
    Answers(Vec<ProcessAnswer>, Duration),
    /// This process has held the reader up; the questions about other processes must be sent again.
    HeldUp(u32),
    /// There is no answer, for another reason.
    Nothing(String),
}

/// The daemon's reader, started when it is needed.
#[derive(Debug)]
pub(crate) struct Reader {
    roots: Roots,
    worker: Option<Worker>,
    /// The questions under way, and the time when they were sent.
    asked: Option<(Vec<Question>, Instant)>,
    next_look: Option<Instant>,
    left: VecDeque<Worker>,
    may_start: Option<Instant>,
    pub(crate) given_up: u64,
    spent: Duration,
}

impl Reader {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            worker: None,
            asked: None,
            next_look: None,
            left: VecDeque::new(),
            may_start: None,
            given_up: 0,
            spent: Duration::ZERO,
        }
    }

    /// Returns true if it can take questions now.
    pub(crate) fn is_free(&self) -> bool {
        self.asked.is_none()
            && self.left.len() < MOST_LEFT
            && self.may_start.is_none_or(|at| Instant::now() >= at)
    }

    /// Returns the number of readers that were given up and have not ended.
    pub(crate) fn left_behind(&self) -> usize {
        self.left.len()
    }

    /// Returns the CPU time of all readers so far, as the kernel counts it.
    pub(crate) fn cpu_time(&self) -> Duration {
        let now = self.worker.as_ref().map(Worker::cpu_time);
        self.spent + now.unwrap_or_default()
    }

    /// Sends questions, at most as many as one message holds. To be called only if it [is free](Self::is_free).
    ///
    /// # Errors
    /// If there can be no reader now; with the questions.
    pub(crate) fn ask(&mut self, questions: Vec<Question>) -> Result<(), (Vec<Question>, String)> {
        if self.worker.is_none() {
            match Worker::start(&Task::Read(self.roots.clone()), NEEDED, READ_SLEEP_LIMITS) {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => {
                    self.may_start = Some(Instant::now() + AFTER_TROUBLE);
                    return Err((questions, format!("no process to read from: {error}")));
                }
            }
        }
        if let Some(worker) = &mut self.worker {
            let message = Questions(questions);
            worker.say(&message);
            let now = Instant::now();
            self.asked = Some((message.0, now));
            self.next_look = Some(now + LOOK);
        }
        Ok(())
    }

    /// Returns the number of questions that one message may hold.
    pub(crate) const fn at_a_time() -> usize {
        AT_A_TIME
    }

    /// Returns the descriptor that becomes readable when there is an answer.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.asked.as_ref()?;
        self.worker.as_ref().map(AsFd::as_fd)
    }

    /// Returns the time until [`Self::take`] must be called even without an answer.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let look = self.next_look?;
        Some(look.saturating_duration_since(Instant::now()))
    }

    /// Takes the answer, or gives the reader up; `None` if neither is due.
    pub(crate) fn take(&mut self) -> Option<(Vec<Question>, ReaderOutcome)> {
        self.bury();
        let (_, since) = self.asked.as_ref()?;
        let since = since.elapsed();
        let worker = self.worker.as_mut()?;
        let came = match worker.receive::<Answers>() {
            Ok(mut all) => all
                .pop()
                .map(|one| ReaderOutcome::Answers(one.all, one.cost)),
            Err(text) => Some(ReaderOutcome::Nothing(text)),
        };
        if let Some(came @ ReaderOutcome::Answers(..)) = came {
            self.next_look = None;
            let (questions, _) = self.asked.take()?;
            return Some((questions, came));
        }
        if self.next_look.is_some_and(|at| Instant::now() < at) && came.is_none() {
            return None;
        }
        self.next_look = Some(Instant::now() + LOOK);
        let came = match worker.held_up() {
            Some(held) => ReaderOutcome::HeldUp(held.process),
            None if came.is_some() => came?,
            None if worker.has_ended() => ReaderOutcome::Nothing("the reader has ended".to_owned()),
            None if since >= AT_MOST => {
                ReaderOutcome::Nothing("the reader does not answer".to_owned())
            }
            None => return None,
        };
        self.give_up();
        let (questions, _) = self.asked.take()?;
        self.next_look = None;
        Some((questions, came))
    }

    /// Kills the worker, which may still exist afterwards.
    fn end(&mut self) -> Option<Worker> {
        let mut worker = self.worker.take()?;
        self.spent += worker.cpu_time();
        worker.kill();
        Some(worker)
    }

    fn give_up(&mut self) {
        if let Some(worker) = self.end() {
            self.given_up += 1;
            if !worker.has_ended() {
                self.left.push_back(worker);
            }
        }
    }

    /// Forgets readers that were given up and have ended.
    fn bury(&mut self) {
        self.left.retain(|worker| !worker.has_ended());
    }

    /// Waits until there is an answer, or none will come.
    pub(crate) fn wait(&self) {
        let (Some(worker), Some(left)) = (&self.worker, self.due_in()) else {
            return;
        };
        let left = Timespec::try_from(left.max(Duration::from_micros(100))).unwrap_or_default();
        let mut descriptors = [PollFd::new(worker, PollFlags::IN)];
        let _ = poll(&mut descriptors, Some(&left));
    }
}

/// Reason why a process was not read at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadOneError {
    /// The process holds up each reader.
    HeldUp,
    /// Another reason, as a sentence.
    Other(String),
}

impl std::fmt::Display for ReadOneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::HeldUp => f.write_str(
                "it holds up each reader (it executes a program, or has its memory locked, and does not go on): it is left alone",
            ),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Reads one process, and waits for that: about 5 s at most. The same reader serves all questions of this kind, so that its bound on readers that were
/// given up holds for them; none is kept between two questions.
///
/// # Errors
/// See [`ReadOneError`].
pub(crate) fn read_one(reader: &mut Reader, pid: u32) -> Result<ProcessAnswer, ReadOneError> {
    reader.bury();
    if !reader.is_free() {
        let text = match reader.left_behind() {
            MOST_LEFT.. => "the readers that were held up have not ended",
            _ => "no reader could be started a moment ago",
        };
        let text = format!("no process can be read now ({text}): try again later");
        return Err(ReadOneError::Other(text));
    }
    let question = Question {
        pid,
        in_brief: false,
        cgroup: true,
        executable: true,
    };
    let asked = reader.ask(vec![question]);
    asked.map_err(|(_, text)| ReadOneError::Other(text))?;
    let answer = loop {
        reader.wait();
        match reader.take() {
            None => {}
            Some((_, ReaderOutcome::Answers(mut all, _))) => {
                let none = || ReadOneError::Other("there is no answer".to_owned());
                break all.pop().ok_or_else(none);
            }
            Some((_, ReaderOutcome::HeldUp(_))) => break Err(ReadOneError::HeldUp),
            Some((_, ReaderOutcome::Nothing(text))) => break Err(ReadOneError::Other(text)),
        }
    };
    reader.end();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(reader: &mut Reader) -> ReaderOutcome {
        loop {
            reader.wait();
            if let Some((_, came)) = reader.take() {
                return came;
            }
        }
    }

    fn question(pid: u32) -> Question {
        Question {
            pid,
            in_brief: false,
            cgroup: true,
            executable: true,
        }
    }

    #[test]
    fn processes_are_read_and_our_own_are_not() {
        // A child of ours would be taken for a worker.
        let mut command = std::process::Command::new("sh");
        let output = command
            .args(["-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
            .output()
            .unwrap();
        let sleeper: u32 = String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // The shell prints the number before its child executes the program.
        let name = format!("/proc/{sleeper}/comm");
        let begun = Instant::now();
        while !std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n") {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut reader = Reader::new(&Roots::default());
        let own = std::process::id();
        reader
            .ask([sleeper, own, u32::MAX >> 1].map(question).to_vec())
            .unwrap();
        let ReaderOutcome::Answers(all, _) = wait_for(&mut reader) else {
            panic!()
        };
        let pid = rustix::process::Pid::from_raw(i32::try_from(sleeper).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let roots = Roots::default();
        assert_eq!(all[0].user, Some(rustix::process::geteuid().as_raw()));
        assert!(all[0].start_ticks.is_some(), "{all:?}");
        assert!(all[0].executable.as_ref().unwrap().ends_with(b"sleep"));
        assert_eq!(all[0].cgroup, path_of_process(&roots, own).unwrap());
        assert!(all[1].start_ticks.is_none() && all[1].user.is_some());
        assert_eq!((all[2].user, all[2].start_ticks), (None, None));
    }

    #[test]
    fn a_reader_that_ends_is_followed_by_another_one() {
        let mut reader = Reader::new(&Roots::default());
        reader.ask(vec![question(1)]).unwrap();
        assert!(matches!(wait_for(&mut reader), ReaderOutcome::Answers(..)));
        reader.worker.as_mut().unwrap().kill();
        reader.ask(vec![question(1)]).unwrap();
        assert!(matches!(wait_for(&mut reader), ReaderOutcome::Nothing(_)));
        reader.ask(vec![question(1)]).unwrap();
        assert!(matches!(wait_for(&mut reader), ReaderOutcome::Answers(..)));
        assert_eq!((reader.given_up, reader.left_behind()), (1, 0));
    }
}
