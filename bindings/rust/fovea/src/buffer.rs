// SPDX-License-Identifier: Apache-2.0
//! Memory of a context, and the rule of who may use whose.
use crate::{check, invalid, sys, AsShape, Context, Format, Plain, Result, Tensor, TensorMut};
use std::ffi::c_void;
use std::marker::PhantomData;

/// Memory that a context owns.  Its tensors serve that context alone (host buffers: any host
/// context), which keeps reads, writes and the final free in one stream order.
///
/// Its contents are never a Rust reference.  So they may be written and read while tensors of it
/// stand in a [`Prepared`](crate::Prepared) call: each sees what was done before it.
#[derive(Debug)]
pub struct Buffer<'c> {
    ctx: &'c Context,
    data: *mut c_void,
    bytes: usize,
}

impl<'c> Buffer<'c> {
    pub(crate) fn owning(ctx: &'c Context, data: *mut c_void, bytes: usize) -> Buffer<'c> {
        Buffer { ctx, data, bytes }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address, on the device.
    pub fn as_ptr(&self) -> *mut c_void {
        self.data
    }

    /// Fills the front of the buffer; done when it returns.
    pub fn write<T: Plain>(&self, from: &[T]) -> Result<()> {
        self.fits("write", std::mem::size_of_val(from))?;
        self.copy(self.data, from.as_ptr().cast(), std::mem::size_of_val(from))
    }

    /// Copies the front of the buffer out, after all work enqueued so far.
    pub fn read<T: Plain>(&self, to: &mut [T]) -> Result<()> {
        self.fits("read", std::mem::size_of_val(to))?;
        self.copy(to.as_mut_ptr().cast(), self.data, std::mem::size_of_val(to))
    }

    /// A contiguous view of its front.
    pub fn tensor<F: Format>(&self, shape: impl AsShape) -> Result<Tensor<'_>> {
        Tensor::over(self.data, self.capacity::<F>(), F::DTYPE, &shape, self.home())
    }

    /// A contiguous writable view of its front.  An operation takes an input and an output of one
    /// buffer only where its documentation says that the output may be that input.
    pub fn tensor_mut<F: Format>(&self, shape: impl AsShape) -> Result<TensorMut<'_>> {
        // Every view begins at the front, so the library sees by the address that two are one.
        let view = Tensor::over(self.data, self.capacity::<F>(), F::DTYPE, &shape, self.home())?;
        Ok(TensorMut::of_view(view))
    }

    fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        check(unsafe { sys::fovea_copy(self.ctx.as_raw(), to, from, bytes) })?;
        self.ctx.synchronize()
    }

    fn fits(&self, what: &str, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        invalid(format!("Buffer::{what}: {bytes} bytes, the buffer has {}", self.bytes))
    }

    fn capacity<F: Format>(&self) -> usize {
        (self.bytes as u128 * 8 / F::BITS as u128).min(usize::MAX as u128) as usize
    }

    fn home(&self) -> Home {
        match self.ctx.host {
            true => Home::Host,
            false => Home::Device(self.ctx.as_raw()),
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        unsafe { sys::fovea_free(self.ctx.as_raw(), self.data) };
    }
}

/// Whose memory a view is of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    Host,
    Device(*mut sys::fovea_context),
    Vouched, // by the unsafe constructors
}

impl Home {
    /// A host context reads host memory, done on return; another reads buffers of its own.
    pub(crate) fn check(self, op: &str, field: &str, ctx: &Context) -> Result<()> {
        match self {
            Home::Device(owner) if ctx.host || owner != ctx.as_raw() => {
                invalid(format!("{op}: {field} is a buffer of another context"))
            }
            Home::Host if !ctx.host => invalid(format!(
                "{op}: {field} is host memory, this context is on a device: upload it to a Buffer"
            )),
            _ => Ok(()),
        }
    }
}

/// What an operation's tensors ask of the context that runs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    host: Option<&'static str>,
    device: Option<(&'static str, *mut sys::fovea_context)>,
    stranger: Option<(&'static str, *mut sys::fovea_context)>,
    views: PhantomData<&'a mut ()>,
}

impl Places<'_> {
    pub(crate) fn none() -> Self {
        Places { host: None, device: None, stranger: None, views: PhantomData }
    }

    pub(crate) fn note(&mut self, field: &'static str, home: Home) {
        match (home, self.device) {
            (Home::Host, _) => self.host = Some(field),
            (Home::Device(owner), Some((_, first))) if owner != first => {
                self.stranger = Some((field, owner))
            }
            (Home::Device(owner), _) => self.device = Some((field, owner)),
            (Home::Vouched, _) => {}
        }
    }

    #[inline]
    pub(crate) fn check(&self, op: &str, ctx: &Context) -> Result<()> {
        for (field, owner) in self.device.into_iter().chain(self.stranger) {
            Home::Device(owner).check(op, field, ctx)?;
        }
        match self.host {
            Some(field) => Home::Host.check(op, field, ctx),
            None => Ok(()),
        }
    }
}
