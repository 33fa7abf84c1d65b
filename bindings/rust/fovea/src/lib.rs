// SPDX-License-Identifier: Apache-2.0
//! Efficient attention on the CPU and on NVIDIA GPUs, behind one stable C library.
//!
//! A [`Context`] is one device, one stream and one workspace.  Tensors are views of slices (host
//! contexts) or of [`Buffer`]s (any context).  An operation is a builder: what must be given goes to
//! `new`, and each optional field has a method.
//!
//! ```
//! use fovea::{AttentionForward, Context, Tensor, TensorMut};
//! # fn main() -> fovea::Result<()> {
//! let (b, s, t, h, g, d) = (1, 2, 3, 4, 2, 8);
//! let (q, k, v) = (vec![0.1f32; b * s * h * d], vec![0.2f32; b * t * g * d], vec![0.3f32; b * t * g * d]);
//! let (mut o, mut lse) = (vec![0f32; q.len()], vec![0f32; b * h * s]);
//! let ctx = Context::host()?;
//! AttentionForward::new(
//!     Tensor::new(&q, [b, s, h, d])?, // not (b, h, s, d)
//!     Tensor::new(&k, [b, t, g, d])?,
//!     Tensor::new(&v, [b, t, g, d])?,
//!     TensorMut::new(&mut o, [b, s, h, d])?,
//! )
//! .causal(true)
//! .lse(TensorMut::new(&mut lse, [b, h, s])?)
//! .run(&ctx)?;
//! assert!((o[0] - 0.3).abs() < 1e-6);
//! # Ok(())
//! # }
//! ```
//!
//! A builder that is kept runs many times; a [`Prepared`] call costs less of the host, and its
//! tensors can be exchanged.  Shapes are [any integers](AsShape).
//!
//! | feature | what |
//! | --- | --- |
//! | none | `libfovea.a` is linked into the program, where it is found; else `libfovea.so` is linked |
//! | `static` | `libfovea.a`, or the build fails |
//! | `dlopen` | nothing is linked: the program opens `libfovea.so` when it runs |
//! | `half` | `half::f16` and `half::bf16` are elements |
//!
//! A [`Context`] is `Send` and not `Sync`: one thread at a time uses it, any number work at once.
//! Tensors, buffers and calls stay on the thread that made them.
#![warn(missing_docs)]

#[macro_use]
mod op;
mod buffer;
mod enums; // generated
#[rustfmt::skip] // generated
mod ops;
mod prepared;
mod recipe;
mod shape;
mod tensor;
#[rustfmt::skip] // generated
mod x_ops;

/// Operations outside the promise of the ABI: they may change with any release.
pub mod experimental {
    pub use crate::enums::experimental::*;
    pub use crate::recipe::{recipe, recipes, Recipe};
    pub use crate::x_ops::*;
}

/// Every enum, for the rows of operations.
mod all {
    pub use crate::enums::{experimental::*, *};
}

use fovea_sys as sys;
use std::ffi::{c_void, CStr};
use std::fmt;
use std::ptr::{null_mut, NonNull};

pub use buffer::Buffer;
pub use enums::*;
pub use ops::*;
pub use prepared::Prepared;
pub use shape::{AsShape, Extent};
pub use tensor::{
    Bf16, E2m1, E4m3, E5m2, E8m0, Element, Format, Plain, Tensor, TensorMut, F16, I4,
};

/// Why a call failed; the text names the operation, the field, what it got and what it wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No fovea could run this: the call is wrong.
    InvalidArgument(String),
    /// A valid call that this build or device has no kernel for.
    Unsupported(String),
    /// The workspace or a buffer could not be had.
    OutOfMemory(String),
    /// The device failed: drop the context.
    Device(String),
    /// A bug in fovea.
    Internal(String),
    /// The library cannot be opened, or is of another version than these bindings.
    Library(String),
}

impl Error {
    /// The sentence behind the failure.
    pub fn text(&self) -> &str {
        match self {
            Error::InvalidArgument(text) | Error::Unsupported(text) | Error::OutOfMemory(text) => {
                text
            }
            Error::Device(text) | Error::Internal(text) | Error::Library(text) => text,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}

/// A result whose error is fovea's.
pub type Result<T> = std::result::Result<T, Error>;

fn check(status: sys::fovea_status) -> Result<()> {
    if status == sys::FOVEA_OK {
        return Ok(());
    }
    let text = unsafe { text(sys::fovea_last_error()) };
    Err(match status {
        sys::FOVEA_INVALID_ARGUMENT => Error::InvalidArgument(text),
        sys::FOVEA_UNSUPPORTED => Error::Unsupported(text),
        sys::FOVEA_OUT_OF_MEMORY => Error::OutOfMemory(text),
        sys::FOVEA_DEVICE_ERROR => Error::Device(text),
        _ => Error::Internal(text),
    })
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Error::InvalidArgument(text))
}

/// Safety: NULL or a C string.
unsafe fn text(c: *const std::os::raw::c_char) -> String {
    if c.is_null() {
        return String::new();
    }
    CStr::from_ptr(c).to_string_lossy().into_owned()
}

fn load() -> Result<()> {
    sys::load().map_err(Error::Library)
}

/// The library's version, major * 10000 + minor * 100 + patch.
pub fn version() -> Result<i32> {
    load()?;
    Ok(unsafe { sys::fovea_version() })
}

/// A fact of the library's build; "" for an unknown key.
pub fn build(key: Build) -> Result<String> {
    load()?;
    Ok(unsafe { text(sys::fovea_build_get(key)) })
}

/// How many devices a backend has here; 0 is not an error.
pub fn device_count(backend: Backend) -> Result<i32> {
    load()?;
    let mut count = 0;
    check(unsafe { sys::fovea_device_count(backend, &mut count) })?;
    Ok(count)
}

/// One device, one stream, one workspace.  It may move between threads, but one at a time uses it.
///
/// On the host an operation is done when it returns.  On CUDA it is enqueued; [`Buffer::read`] and
/// [`Context::synchronize`] wait.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<sys::fovea_context>,
    host: bool,
}

// The library ties a context to no thread; NonNull keeps it from being Sync.
unsafe impl Send for Context {}

impl Context {
    /// A context on one device of a backend.
    pub fn new(backend: Backend, device: i32) -> Result<Context> {
        load()?;
        let mut raw = null_mut();
        check(unsafe { sys::fovea_context_create(backend, device, &mut raw) })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::Internal("fovea_context_create gave NULL".into()))?;
        Ok(Context { raw, host: backend == Backend::HOST })
    }

    /// A context on the CPU.  Operations are done when they return.
    pub fn host() -> Result<Context> {
        Context::new(Backend::HOST, 0)
    }

    /// A context on an NVIDIA GPU.  Operations return when enqueued.
    pub fn cuda(device: i32) -> Result<Context> {
        Context::new(Backend::CUDA, device)
    }

    /// The C handle, for calls of `fovea_sys`.
    pub fn as_raw(&self) -> *mut sys::fovea_context {
        self.raw.as_ptr()
    }

    /// Threads that a host operation may use; 0: all hardware threads.
    pub fn set_threads(&self, threads: i32) -> Result<()> {
        check(unsafe { sys::fovea_context_set_threads(self.as_raw(), threads) })
    }

    /// Borrows a stream; null goes back to the context's own.
    /// # Safety
    /// `stream` is null or a live cudaStream_t of this device, and stays so while borrowed.
    pub unsafe fn set_stream(&self, stream: *mut c_void) -> Result<()> {
        check(sys::fovea_context_set_stream(self.as_raw(), stream))
    }

    /// A fixed workspace; null with 0 bytes: the context's own again.
    /// # Safety
    /// `data` is memory of this device, of that size, that nothing else uses while it is set.
    pub unsafe fn set_workspace(&self, data: *mut c_void, bytes: usize) -> Result<()> {
        check(sys::fovea_context_set_workspace(self.as_raw(), data, bytes))
    }

    /// Reads one property.
    pub fn get(&self, key: Property) -> Result<i64> {
        let mut value = 0;
        check(unsafe { sys::fovea_context_get(self.as_raw(), key, &mut value) })?;
        Ok(value)
    }

    /// Waits until all work of this context is done; faults of earlier operations surface here.
    pub fn synchronize(&self) -> Result<()> {
        check(unsafe { sys::fovea_context_synchronize(self.as_raw()) })
    }

    /// Later work of this context waits for what `other` has enqueued so far.
    pub fn wait(&self, other: &Context) -> Result<()> {
        check(unsafe { sys::fovea_context_wait(self.as_raw(), other.as_raw()) })
    }

    /// The kernel the last operation ran; "" before any.
    pub fn last_kernel(&self) -> String {
        unsafe { text(sys::fovea_context_last_kernel(self.as_raw())) }
    }

    /// The kernel that the last operation or workspace query chose; "" before any.
    pub fn last_plan(&self) -> String {
        unsafe { text(sys::fovea_context_last_plan(self.as_raw())) }
    }

    /// Why no better kernel serves the call of `last_plan`, best first: "sm90: bias is given,
    /// wanted none; sm80: ..."; "" where the best one serves.
    pub fn last_reasons(&self) -> String {
        unsafe { text(sys::fovea_context_last_reasons(self.as_raw())) }
    }

    /// Memory of this context's device, its contents unspecified.
    pub fn alloc(&self, memory: Memory, bytes: usize) -> Result<Buffer<'_>> {
        let mut data = null_mut();
        check(unsafe { sys::fovea_alloc(self.as_raw(), memory, bytes, &mut data) })?;
        if self.host && bytes > 0 {
            // Buffer::read hands these bytes to safe code.
            unsafe { data.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(Buffer::owning(self, data, bytes))
    }

    /// A buffer on this context's device that holds a copy of `from`.
    pub fn upload<T: Plain>(&self, from: &[T]) -> Result<Buffer<'_>> {
        let buffer = self.alloc(Memory::DEVICE, std::mem::size_of_val(from))?;
        buffer.write(from)?;
        Ok(buffer)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe { sys::fovea_context_destroy(self.as_raw()) }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
