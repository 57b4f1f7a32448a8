//! The worker: carries out the orders of one client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superhue_model::{ObjectId, ProcessId, Region};

use super::wire::{Frames, Greeting, ObjectMappers, Order, Reply, Terms, VERSION, framed};
use crate::{Actuator, Mappers};

/// Time between two calls of [`Actuator::housekeep`].
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// Bytes read at a time.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Reason why a worker ends before its client.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client's message is not an order.
    #[error("the client's message is refused: {0}")]
    Malformed(String),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Greets the client on `stream`, and carries out its orders until the client closes the stream. `client` is the number of its process;
/// `make` makes the actuator.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(
    mut stream: UnixStream,
    client: u32,
    terms: Terms,
    make: impl FnOnce(MapperTable) -> Box<dyn Actuator>,
) -> Result<(), ServeError> {
    let ways = MapperTable::default();
    let mut actuator = make(ways.clone());
    let welcome = Greeting::Welcome {
        version: VERSION,
        client,
        terms,
    };
    stream.write_all(&framed(&welcome)?)?;
    let mut frames = Frames::default();
    let mut tended = Instant::now();
    while let Some(order) = next(&mut stream, &mut frames)? {
        if !order.is_bounded() {
            let text = "the order has too many actions, or too many ways";
            return Err(ServeError::Malformed(text.to_owned()));
        }
        ways.set(order.ways);
        let outcome = actuator.perform(&order.plan, &|| has_gone(&stream));
        stream.write_all(&framed(&Reply { outcome })?)?;
        if tended.elapsed() >= HOUSEKEEPING {
            actuator.housekeep();
            tended = Instant::now();
        }
    }
    Ok(())
}

/// Reads the next order; `None` at the end of the stream.
fn next(stream: &mut UnixStream, frames: &mut Frames) -> Result<Option<Order>, ServeError> {
    let mut gulp = [0; READ_BUFFER_BYTES];
    loop {
        if let Some(order) = frames.take().map_err(ServeError::Malformed)? {
            return Ok(Some(order));
        }
        match stream.read(&mut gulp) {
            Ok(0) if frames.is_within() => {
                return Err(ServeError::Malformed("it ends in its middle".to_owned()));
            }
            Ok(0) => return Ok(None),
            Ok(count) => frames.push(gulp.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns true if the client has closed its side.
fn has_gone(stream: &UnixStream) -> bool {
    let none = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut descriptors = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(poll(&mut descriptors, Some(&none)), Ok(count) if count > 0)
}

/// The mappers of shared objects that the present order names. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MapperTable(Arc<Mutex<KnownMappings>>);

type KnownMappings = BTreeMap<(ObjectId, Region), Vec<(ProcessId, Region)>>;

impl MapperTable {
    fn set(&self, ways: Vec<ObjectMappers>) {
        let ways = ways
            .into_iter()
            .map(|way| ((way.object, way.region), way.through));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ways.collect();
    }

    /// Returns the mappers, for an actuator.
    #[must_use]
    pub fn mappers(&self) -> Mappers {
        let Self(known) = self.clone();
        Box::new(move |object, region| {
            let known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&(object, region)).cloned().unwrap_or_default()
        })
    }
}
