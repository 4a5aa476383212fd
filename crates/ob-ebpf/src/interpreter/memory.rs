//! The memory of a call: every access is checked here, by what the pointer knows of itself.

use super::frame::Frame;
use super::value::{Pointer, Value};
use crate::call::{Call, FaultKind, Violation};
use crate::isa::Size;
use crate::program::{FRAME_LEN, FRAMES_MAX, Program};
use crate::world::{FieldKind, Region, World};

/// Memory that outlasts calls, so that none is allocated for one.
pub(super) struct Buffers {
    pub(super) frames: Box<[Frame; FRAMES_MAX]>,
    pub(super) per_call: Vec<u8>,
    pub(super) table_value: Vec<u8>,
    /// What is on its way from one place to another.
    pub(super) moving: Vec<u8>,
}

/// What a program can reach in one call.
pub(super) struct Memory<'m, 'c> {
    pub(super) buffers: &'m mut Buffers,
    pub(super) call: &'m mut Call<'c>,
    pub(super) world: &'m World,
    read_only: &'m [u8],
    /// Which frame is the running function's.
    pub(super) depth: usize,
    /// For which call each frame is; 0 for none.
    activations: [u32; FRAMES_MAX],
    activated: u32,
}

fn unproven<T>(violation: Violation) -> Result<T, FaultKind> {
    Err(FaultKind::Unproven(violation))
}

impl<'m, 'c> Memory<'m, 'c> {
    pub(super) fn new(
        program: &'m Program,
        world: &'m World,
        call: &'m mut Call<'c>,
        buffers: &'m mut Buffers,
    ) -> Self {
        buffers.per_call.clear();
        buffers.per_call.extend_from_slice(program.per_call());
        buffers.table_value.clear();
        buffers.table_value.resize(world.table_value_len as usize, 0);
        let read_only = program.read_only();
        Self { buffers, call, world, read_only, depth: 0, activations: [0; FRAMES_MAX], activated: 0 }
    }

    /// Makes a frame the running function's: one that it has not had before.
    pub(super) fn enter(&mut self, depth: usize) -> Result<&mut Frame, FaultKind> {
        let (Some(frame), Some(activation)) =
            (self.buffers.frames.get_mut(depth), self.activations.get_mut(depth))
        else {
            return unproven(Violation::TooDeep);
        };
        // Each costs fuel, so there cannot be more than there is fuel.
        self.activated = self.activated.wrapping_add(1);
        *activation = self.activated;
        self.depth = depth;
        frame.clear();
        Ok(frame)
    }

    /// Gives the running function's frame up, if it is not the first.
    pub(super) fn leave(&mut self) -> Option<&Frame> {
        let caller = self.depth.checked_sub(1)?;
        if let Some(activation) = self.activations.get_mut(self.depth) {
            *activation = 0;
        }
        let left = self.buffers.frames.get(self.depth);
        self.depth = caller;
        left
    }

    /// The end of the running function's frame.
    pub(super) fn frame_end(&self) -> Pointer {
        let activation = self.activations.get(self.depth).copied().unwrap_or(0);
        Pointer { region: Region::Stack, frame: self.depth as u8, activation, offset: 0 }
    }

    /// Whether the frame that a pointer points into is still the same call's.
    pub(super) fn is_alive(&self, pointer: &Pointer) -> bool {
        pointer.region != Region::Stack
            || self.activations.get(usize::from(pointer.frame)) == Some(&pointer.activation)
    }

    /// What a load finds.
    pub(super) fn load(&self, pointer: Pointer, size: Size) -> Result<Value, FaultKind> {
        if pointer.region == Region::Context {
            return self.load_field(pointer, size);
        }
        let begin = self.find(pointer, size.bytes())?;
        if pointer.region == Region::Stack
            && size == Size::B8
            && let Some(held) = self.frame(pointer)?.pointer(begin)
        {
            return if self.is_alive(&held) {
                Ok(Value::Pointer(held))
            } else {
                unproven(Violation::DeadFrame)
            };
        }
        Ok(Value::Number(from_bytes(self.read(pointer, begin, size.bytes())?)))
    }

    /// Does what a store does.
    pub(super) fn store(&mut self, pointer: Pointer, size: Size, value: Value) -> Result<(), FaultKind> {
        if pointer.region == Region::Context {
            return self.store_field(pointer, size, value);
        }
        let begin = self.find_writable(pointer, size.bytes())?;
        match value {
            Value::Number(number) => {
                let bytes = self.write(pointer, begin, size.bytes())?;
                to_bytes(bytes, number);
                Ok(())
            }
            Value::Pointer(stored) if pointer.region == Region::Stack && size == Size::B8 => {
                self.frame_mut(pointer)?.put_pointer(begin, stored)
            }
            _ => unproven(Violation::PointerStored),
        }
    }

    /// The word that an atomic operation is about, and what becomes of it.
    pub(super) fn exchange(
        &mut self,
        pointer: Pointer,
        size: Size,
        operate: impl FnOnce(u64) -> u64,
    ) -> Result<u64, FaultKind> {
        let begin = self.find_writable(pointer, size.bytes())?;
        if !begin.is_multiple_of(size.bytes()) {
            return Err(FaultKind::Misaligned { region: pointer.region, offset: pointer.offset });
        }
        let before = from_bytes(self.read(pointer, begin, size.bytes())?);
        to_bytes(self.write(pointer, begin, size.bytes())?, operate(before));
        Ok(before)
    }

    /// Where bytes begin in their region, if they are all in it.
    pub(super) fn find(&self, pointer: Pointer, len: usize) -> Result<usize, FaultKind> {
        let (region_len, offset) = match pointer.region {
            Region::Context => return unproven(Violation::ContextAccess { offset: pointer.offset }),
            Region::Data => (self.call.data.len(), pointer.offset),
            Region::Scratch => (self.call.scratch.len(), pointer.offset),
            Region::Stack if !self.is_alive(&pointer) => return unproven(Violation::DeadFrame),
            Region::Stack => (FRAME_LEN, pointer.offset.wrapping_add(FRAME_LEN as i64)),
            Region::ReadOnly => (self.read_only.len(), pointer.offset),
            Region::PerCall => (self.buffers.per_call.len(), pointer.offset),
            Region::TableValue => (self.buffers.table_value.len(), pointer.offset),
        };
        match region_len.checked_sub(len) {
            Some(last) if offset as u64 <= last as u64 => Ok(offset as usize),
            _ => Err(FaultKind::OutOfBounds {
                region: pointer.region,
                offset: pointer.offset,
                len: u32::try_from(len).unwrap_or(u32::MAX),
            }),
        }
    }

    /// The same of bytes that are to be written.
    pub(super) fn find_writable(&self, pointer: Pointer, len: usize) -> Result<usize, FaultKind> {
        match pointer.region {
            Region::Context => unproven(Violation::ContextAccess { offset: pointer.offset }),
            region if !region.is_writable() => unproven(Violation::ReadOnly(region)),
            _ => self.find(pointer, len),
        }
    }

    /// Bytes where [`Self::find`] has found them.
    pub(super) fn read(&self, pointer: Pointer, begin: usize, len: usize) -> Result<&[u8], FaultKind> {
        let bytes = match pointer.region {
            Region::Context => return unproven(Violation::ContextAccess { offset: pointer.offset }),
            Region::Stack => return self.frame(pointer)?.read(begin, len),
            Region::Data => self.call.data,
            Region::Scratch => &*self.call.scratch,
            Region::ReadOnly => self.read_only,
            Region::PerCall => &self.buffers.per_call,
            Region::TableValue => &self.buffers.table_value,
        };
        Ok(bytes.get(begin..begin + len).unwrap_or_default())
    }

    /// Bytes where [`Self::find_writable`] has found them. All of them count as written.
    pub(super) fn write(
        &mut self,
        pointer: Pointer,
        begin: usize,
        len: usize,
    ) -> Result<&mut [u8], FaultKind> {
        let bytes = match pointer.region {
            Region::Stack => return Ok(self.frame_mut(pointer)?.write(begin, len)),
            Region::Scratch => &mut *self.call.scratch,
            Region::PerCall => &mut self.buffers.per_call,
            region => return unproven(Violation::ReadOnly(region)),
        };
        Ok(bytes.get_mut(begin..begin + len).unwrap_or_default())
    }

    fn frame(&self, pointer: Pointer) -> Result<&Frame, FaultKind> {
        let frame = self.buffers.frames.get(usize::from(pointer.frame));
        frame.ok_or(FaultKind::Unproven(Violation::DeadFrame))
    }

    fn frame_mut(&mut self, pointer: Pointer) -> Result<&mut Frame, FaultKind> {
        let frame = self.buffers.frames.get_mut(usize::from(pointer.frame));
        frame.ok_or(FaultKind::Unproven(Violation::DeadFrame))
    }

    /// Fields are read as a whole.
    fn load_field(&self, pointer: Pointer, size: Size) -> Result<Value, FaultKind> {
        let (kind, word) = self.field(pointer, size)?;
        Ok(match kind {
            FieldKind::Number | FieldKind::Result => {
                Value::Number(self.call.context.get(word).copied().unwrap_or(0))
            }
            FieldKind::Data => Value::Pointer(Pointer::to(Region::Data)),
            FieldKind::DataLen => Value::Number(self.call.data.len() as u64),
            FieldKind::Scratch => Value::Pointer(Pointer::to(Region::Scratch)),
            FieldKind::ScratchLen => Value::Number(self.call.scratch.len() as u64),
        })
    }

    fn store_field(&mut self, pointer: Pointer, size: Size, value: Value) -> Result<(), FaultKind> {
        let (kind, word) = self.field(pointer, size)?;
        match (kind, value, self.call.context.get_mut(word)) {
            (FieldKind::Result, Value::Number(number), Some(field)) => {
                *field = number;
                Ok(())
            }
            (FieldKind::Result, ..) => unproven(Violation::PointerStored),
            _ => unproven(Violation::ReadOnly(Region::Context)),
        }
    }

    fn field(&self, pointer: Pointer, size: Size) -> Result<(FieldKind, usize), FaultKind> {
        let none = FaultKind::Unproven(Violation::ContextAccess { offset: pointer.offset });
        let offset = usize::try_from(pointer.offset).map_err(|_| none)?;
        match self.world.field(offset) {
            Some(field) if size == Size::B8 => Ok((field.kind, offset / crate::world::FIELD_LEN)),
            _ => Err(none),
        }
    }
}

/// The number of one, two, four or eight bytes.
fn from_bytes(bytes: &[u8]) -> u64 {
    if let Ok(bytes) = bytes.try_into() {
        u64::from_le_bytes(bytes)
    } else if let Ok(bytes) = bytes.try_into() {
        u32::from_le_bytes(bytes).into()
    } else if let Ok(bytes) = bytes.try_into() {
        u16::from_le_bytes(bytes).into()
    } else {
        bytes.first().copied().unwrap_or(0).into()
    }
}

/// The lower bytes of a number.
fn to_bytes(bytes: &mut [u8], number: u64) {
    let number = number.to_le_bytes();
    if let Ok(bytes) = <&mut [u8; 8]>::try_from(&mut *bytes) {
        *bytes = number;
        return;
    }
    for (to, from) in bytes.iter_mut().zip(number) {
        *to = from;
    }
}
