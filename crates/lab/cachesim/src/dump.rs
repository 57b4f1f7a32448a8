//! Files of page frames that real kernels dealt, as `kernel/frames` writes them.
//!
//! ```text
//! superhue-frames/1 HOW linux=RELEASE kernel=KIND made=SUM      a line
//! draw PLAN PAGES LEAD                                          a line, then PAGES words
//! ...
//!                                                               an empty line
//! end SUM                                                       FNV-1a of all draws, in hex
//! ```
//!
//! A word is a frame number, little-endian, 32 bits; the uppermost bit is set if the page is part of a huge page of 2
//! MiB. LEAD is the number of the first page, modulo 512. A file without its end comes from a guest that died;
//! [`Dump::parse`] refuses it.

/// Pages of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw {
    /// Name of the plan that requested it: `small`.
    pub plan: String,
    /// Number of its first page, modulo 512.
    pub lead: u64,
    /// A word for each page.
    pub frames: Vec<u32>,
}

/// All draws of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The first line, without the name of the layout.
    pub how: String,
    /// The draws, in the order in which they were made.
    pub draws: Vec<Draw>,
    /// FNV-1a of the draws.
    pub sum: u64,
}

/// Reason why a file is no dump.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// The file does not begin with the name of the layout.
    #[error("does not begin with superhue-frames/1")]
    Other,
    /// A line or a draw is damaged, at this byte.
    #[error("is damaged at byte {0}")]
    Damaged(usize),
    /// The file has no `end` line.
    #[error("has no end: the guest that wrote it died")]
    NoEnd,
    /// The sum in the file is not that of its draws.
    #[error("has a checksum that does not match its contents")]
    Sum,
}

impl Dump {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// See [`DumpError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, DumpError> {
        let (first, mut at) = line(bytes, 0).ok_or(DumpError::Other)?;
        let how = first
            .strip_prefix("superhue-frames/1 ")
            .ok_or(DumpError::Other)?;
        let begin = at;
        let mut draws = Vec::new();
        loop {
            let (text, after) = line(bytes, at).ok_or(DumpError::NoEnd)?;
            if text.is_empty() {
                break;
            }
            let mut words = text.split(' ');
            let draw = words.next() == Some("draw");
            let plan = words.next().unwrap_or_default();
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(pages), Some(lead), true) = (number(), number(), draw) else {
                return Err(DumpError::Damaged(at));
            };
            let pages = usize::try_from(pages).map_err(|_| DumpError::Damaged(at))?;
            if pages > bytes.len() / 4 || lead >= 512 {
                return Err(DumpError::Damaged(at));
            }
            let words = bytes
                .get(after..after + pages * 4)
                .ok_or(DumpError::NoEnd)?;
            let words = words.chunks_exact(4);
            draws.push(Draw {
                plan: plan.to_owned(),
                lead,
                frames: words
                    .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                    .collect(),
            });
            at = after + pages * 4;
        }
        let sum = fnv(&bytes[begin..at]);
        let (end, _) = line(bytes, at + 1).ok_or(DumpError::NoEnd)?;
        let said = end.strip_prefix("end ").ok_or(DumpError::NoEnd)?;
        if u64::from_str_radix(said, 16) != Ok(sum) {
            return Err(DumpError::Sum);
        }
        Ok(Self {
            how: how.to_owned(),
            draws,
            sum,
        })
    }
}

/// The line that begins at byte `at`, and the byte at which the next one begins.
fn line(bytes: &[u8], at: usize) -> Option<(&str, usize)> {
    let rest = bytes.get(at..)?;
    let rest = &rest[..rest.len().min(512)];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, at + end + 1))
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
