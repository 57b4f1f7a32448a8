//! What is said on the connection, and how it is put into frames.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use superhue_model::{ByteCount, ObjectId, Outcome, Plan, ProcessId, Region, Share};

/// Of the protocol.
pub const VERSION: u32 = 1;

/// Bytes of a message, without its length.
pub const LONGEST: usize = 256 << 10;

/// Actions of an order. A collapse takes a millisecond, and between orders the client looks whether it is to stop.
pub(crate) const MOST_ACTIONS: usize = 128;

/// Processes that are named for one region of a shared object.
pub(crate) const MOST_MAPPERS: usize = 4;

/// Bytes of the length before each message.
const HEAD: usize = 4;

/// What a user may have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Memory that the huge pages of one client may add: a size, or a share of the anonymous memory of the processes that it names.
    pub budget: Share,
    /// Bytes that may be collapsed in a second for one client; `None` for no bound.
    pub rate: Option<ByteCount>,
}

/// The first message, to whoever connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "greeting", rename_all = "kebab-case")]
pub enum Greeting {
    /// Orders are taken.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// Number of the client's process as the service sees it; 0 if it does not see it.
        client: u32,
        /// What holds for the client.
        terms: Terms,
    },
    /// They are not.
    Refused {
        /// Why, and what to do.
        text: String,
    },
}

/// A part of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) plan: Plan,
    /// Through whom the regions of shared objects in the plan can be collapsed.
    #[serde(default)]
    pub(crate) ways: Vec<Way>,
}

/// The processes that map a region of a shared object, each with the region of its address space; best first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Way {
    pub(crate) object: ObjectId,
    pub(crate) region: Region,
    pub(crate) through: Vec<(ProcessId, Region)>,
}

/// What an order came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
}

impl Order {
    /// Whether it keeps to the bounds of one.
    pub(crate) fn is_bounded(&self) -> bool {
        let is_short = |way: &Way| way.through.len() <= MOST_MAPPERS;
        self.plan.actions.len() <= MOST_ACTIONS
            && self.ways.len() <= MOST_ACTIONS
            && self.ways.iter().all(is_short)
    }
}

/// The bytes of a message.
///
/// # Errors
/// If it is longer than [`LONGEST`].
pub fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - HEAD;
    let head = u32::try_from(length).ok().filter(|_| length <= LONGEST);
    let head = head.ok_or_else(|| io::Error::other(format!("a message of {length} bytes")))?;
    for (byte, value) in bytes.iter_mut().zip(head.to_le_bytes()) {
        *byte = value;
    }
    Ok(bytes)
}

/// Takes messages out of bytes as they come.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    held: Vec<u8>,
}

impl Frames {
    /// Takes in more bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next message, if it is there in full.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let Some((head, rest)) = self.held.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(format!(
                "a message of {length} bytes was announced, and {LONGEST} is the most"
            ));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        self.held.drain(..HEAD + length);
        Ok(Some(message))
    }

    /// Whether a message has begun and not ended.
    pub(crate) const fn is_within(&self) -> bool {
        !self.held.is_empty()
    }
}
