//! A pool of pages whose colors are known, and the moves of its pages into the program's memory.

mod mapping;
mod mover;
mod own;
mod placed;
mod placer;
mod pool;

pub use placed::{PlacementCounts, Refusal};
pub use placer::Placer;
pub use pool::{Pool, PoolConfig, PoolError, Run};
