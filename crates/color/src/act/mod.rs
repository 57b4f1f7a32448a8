//! Acting: a pool of pages whose colors are known, and moving them to where they are wanted.

mod placer;
mod pool;

pub use placer::{Placed, Placer, Refusal};
pub use pool::{Pool, PoolConfig, PoolError};
