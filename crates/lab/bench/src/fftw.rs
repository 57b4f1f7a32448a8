//! FFTW 3, if it is installed: loaded on demand, so that no build depends on it.
//!
//! See "FFTW User Interface" in the manual, <https://www.fftw.org/fftw3_doc/>.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use crate::BenchError;
use crate::buffer::Buffer;

/// `FFTW_FORWARD`.
const FORWARD: c_int = -1;
/// `FFTW_MEASURE`: try several algorithms and remember the best ("wisdom"), so that only the first plan of a size takes
/// time, and every arm runs the same algorithm.
const MEASURE: c_uint = 0;
/// Name of FFTW's library for the dynamic linker.
const NAME: &str = "libfftw3.so.3";

type PlanOneDimension =
    unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, c_int, c_uint) -> *mut c_void;
type PlanFunction = unsafe extern "C" fn(*mut c_void);

/// The functions used.
#[derive(Debug)]
struct Functions {
    plan: PlanOneDimension,
    execute: PlanFunction,
    destroy: PlanFunction,
    /// Keeps their code mapped.
    _library: libloading::Library,
}

/// The library.
#[derive(Debug)]
pub(crate) struct Library(Arc<Functions>);

impl Library {
    /// Loads the library.
    pub(crate) fn load() -> Result<Self, BenchError> {
        let lacking = |error: libloading::Error| {
            BenchError(format!(
                "FFTW is not installed (Debian: apt-get install libfftw3-double3): {error}"
            ))
        };
        // SAFETY: FFTW's library runs no code of consequence when loaded and unloaded; the names and types are those of
        // its manual, the same in all versions 3.
        unsafe {
            let library = libloading::Library::new(NAME).map_err(lacking)?;
            let functions = Functions {
                plan: *library.get(b"fftw_plan_dft_1d\0").map_err(lacking)?,
                execute: *library.get(b"fftw_execute\0").map_err(lacking)?,
                destroy: *library.get(b"fftw_destroy_plan\0").map_err(lacking)?,
                _library: library,
            };
            Ok(Self(Arc::new(functions)))
        }
    }

    /// Plans a transform of `points` complex numbers at the start of `memory`, in place; the contents are lost.
    pub(crate) fn plan(&self, points: u64, memory: &mut Buffer) -> Result<Plan, BenchError> {
        let doubles = memory.doubles();
        let wanted = usize::try_from(points)
            .ok()
            .and_then(|points| points.checked_mul(2));
        let (Ok(count), Some(true)) = (
            c_int::try_from(points),
            wanted.map(|wanted| wanted <= doubles.len()),
        ) else {
            return Err(BenchError(format!(
                "{points} points do not fit into the memory"
            )));
        };
        let start: *mut c_void = doubles.as_mut_ptr().cast();
        // SAFETY: `points` complex numbers, two doubles each, lie at `start`, as was just checked. FFTW's planner is
        // used by one thread only: `Library` belongs to one workload, and they run one after the other.
        let raw = unsafe { (self.0.plan)(count, start, start, FORWARD, MEASURE) };
        if raw.is_null() {
            return Err(BenchError(format!(
                "FFTW makes no plan for {points} points"
            )));
        }
        Ok(Plan {
            functions: Arc::clone(&self.0),
            raw,
            start,
        })
    }
}

/// Transform of the memory for which it was planned.
#[derive(Debug)]
pub(crate) struct Plan {
    functions: Arc<Functions>,
    raw: *mut c_void,
    start: *mut c_void,
}

impl Plan {
    /// Transforms `memory`, if the plan was made for it; otherwise does nothing.
    pub(crate) fn execute(&mut self, memory: &mut Buffer) {
        if memory.doubles().as_mut_ptr().cast() == self.start {
            // SAFETY: the plan is of this memory, which has its old size and is borrowed exclusively.
            unsafe { (self.functions.execute)(self.raw) }
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by this library, and not used again.
        unsafe { (self.functions.destroy)(self.raw) }
    }
}
