// SPDX-License-Identifier: Apache-2.0
//! What fovea and its tests use of the crate `half`, by the same names and layouts.
#![allow(non_camel_case_types)]

/// IEEE half precision.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct f16(u16);

/// bfloat16.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bf16(u16);

impl f16 {
    /// The number of these bits.
    pub const fn from_bits(bits: u16) -> f16 {
        f16(bits)
    }
    /// Its bits.
    pub const fn to_bits(self) -> u16 {
        self.0
    }
}

impl bf16 {
    /// The number of these bits.
    pub const fn from_bits(bits: u16) -> bf16 {
        bf16(bits)
    }
    /// Its bits.
    pub const fn to_bits(self) -> u16 {
        self.0
    }
}
