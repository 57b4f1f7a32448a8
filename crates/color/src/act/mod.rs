//! Acting: a pool of pages whose colors are known, and moving them to where they are wanted.

mod guard;
mod mapping;
mod mover;
mod own;
mod placed;
mod placer;
mod pool;
mod replace;
mod serve;
mod threads;

pub use guard::{Guard, Unguarded};
pub use placed::{Placed, Refusal};
pub use placer::Placer;
pub use pool::{Pool, PoolConfig, PoolError, Run};
pub use replace::{Access, Keep, Replace, ReplaceError, Replaced};
pub use serve::{FaultServer, Served};
