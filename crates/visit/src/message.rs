//! What superhue and the visiting process say to each other: a length, then JSON.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use superhue_model::{Obstacle, ProcessId};

use crate::{Limits, Visited, Work};

/// Longer messages are nonsense.
const LONGEST: u32 = 16 << 20;

/// What is asked of the visiting process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// A visit.
    Visit {
        process: ProcessId,
        work: Work,
        limits: Limits,
    },
    /// Where the palette is that colors go by.
    Palette { places: Vec<PathBuf> },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Tell {
    /// Of a visit.
    Visited(Visit),
    /// Of a palette: how many colors it has, or what is wrong with it.
    Palette(Result<usize, String>),
}

/// A visit, for better or worse.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    pub(crate) result: Result<Visited, Obstacle>,
    /// For how long the program was stopped, whatever came of it.
    pub(crate) pause: Duration,
    /// The next visit must be no sooner, lest a call with a timeout be begun again for ever.
    pub(crate) rest: Duration,
}

/// Sends a message.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len())
        .ok()
        .filter(|length| *length <= LONGEST);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(text);
    to.write_all(&bytes)
}

/// Receives a message; `None` when the other end is gone.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_ne_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length as usize];
    from.read_exact(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}
