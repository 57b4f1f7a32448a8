//! The messages of the connection, and their frames.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use superhue_model::{ByteCount, ObjectId, Outcome, Plan, ProcessId, Region, Share};

/// Version of the protocol.
pub const VERSION: u32 = 1;

/// Bytes of a message, without its length.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// Actions of an order, at most. A collapse takes a millisecond, and the client can stop between orders.
pub(crate) const MOST_ACTIONS: usize = 128;

/// Number of processes of a [`ObjectMappers`], at most.
pub(crate) const MOST_MAPPERS: usize = 4;

/// Bytes of the length before each message.
const HEAD: usize = 4;

/// The limits of the service for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Memory that huge pages may add for one client: a size, or a share of the anonymous memory of its processes.
    pub budget: Share,
    /// Bytes that may be collapsed per second for one client; `None` for no bound.
    pub rate: Option<ByteCount>,
}

/// The first message of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "greeting", rename_all = "kebab-case")]
pub enum Greeting {
    /// The service takes orders.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// Number of the client's process as the service sees it; 0 if it does not see it.
        client: u32,
        /// The limits for this client.
        terms: Terms,
    },
    /// The service takes none.
    Refused {
        /// The reason, and what to do.
        text: String,
    },
}

/// A part of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) plan: Plan,
    /// The mappers of the regions of shared objects in the plan.
    #[serde(default)]
    pub(crate) ways: Vec<ObjectMappers>,
}

/// The processes that map a region of a shared object, each with the region of its address space; best first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ObjectMappers {
    pub(crate) object: ObjectId,
    pub(crate) region: Region,
    pub(crate) through: Vec<(ProcessId, Region)>,
}

/// The result of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
}

impl Order {
    /// Returns true if the order is within the bounds.
    pub(crate) fn is_bounded(&self) -> bool {
        let is_short = |way: &ObjectMappers| way.through.len() <= MOST_MAPPERS;
        self.plan.actions.len() <= MOST_ACTIONS
            && self.ways.len() <= MOST_ACTIONS
            && self.ways.iter().all(is_short)
    }
}

/// Encodes a message.
///
/// # Errors
/// If it is longer than [`MAX_MESSAGE_BYTES`].
pub fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    framed_within(message, MAX_MESSAGE_BYTES)
}

/// Encodes a message.
///
/// # Errors
/// If it is longer than `longest`, without its length.
pub fn framed_within(message: &impl Serialize, longest: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - HEAD;
    let head = u32::try_from(length).ok().filter(|_| length <= longest);
    let head = head.ok_or_else(|| io::Error::other(format!("a message of {length} bytes")))?;
    for (byte, value) in bytes.iter_mut().zip(head.to_le_bytes()) {
        *byte = value;
    }
    Ok(bytes)
}

/// Collects bytes, and cuts them into messages.
#[derive(Debug)]
pub struct Frames {
    held: Vec<u8>,
    longest: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self::within(MAX_MESSAGE_BYTES)
    }
}

impl Frames {
    /// Takes messages of at most `longest` bytes each, without their lengths.
    #[must_use]
    pub const fn within(longest: usize) -> Self {
        Self {
            held: Vec::new(),
            longest,
        }
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Takes the next message, if all of it has arrived.
    ///
    /// # Errors
    /// A sentence that describes the fault of the message.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let Some((head, rest)) = self.held.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        let longest = self.longest;
        if length > longest {
            return Err(format!(
                "a message of {length} bytes was announced, and {longest} is the most"
            ));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        self.held.drain(..HEAD + length);
        Ok(Some(message))
    }

    /// Returns true if a part of a message has arrived.
    #[must_use]
    pub const fn is_within(&self) -> bool {
        !self.held.is_empty()
    }
}
