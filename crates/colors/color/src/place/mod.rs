//! A pool of pages whose colors are known, and moving them to where they are wanted.

mod mapping;
mod mover;
mod own;
mod placed;
mod placer;
mod pool;

pub use placed::{Placed, Refusal};
pub use placer::Placer;
pub use pool::{Pool, PoolConfig, PoolError, Run};
