//! Native code in memory. It is written, then made executable, and never both at once; it goes when its owner does.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use cranelift_codegen::binemit::Reloc;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::CompileError;
use super::machine::Function;

/// Where functions begin: what processors fetch well.
const ALIGNMENT: usize = 16;
/// Bytes of a program's code, at most. Calls between functions reach much farther on all processors.
const CODE_LEN_MAX: usize = 64 << 20;

/// Functions one behind the other, not yet executable.
#[derive(Default)]
pub(super) struct Image {
    bytes: Vec<u8>,
    begins: Vec<usize>,
    calls: Vec<Link>,
}

/// A call of another function, whose address is yet to be filled in.
pub(super) struct Link {
    /// Where.
    pub(super) offset: usize,
    /// How the processor has it.
    pub(super) kind: Reloc,
    /// Which function, in the order of their being added.
    pub(super) target: usize,
    /// What is added to the address.
    pub(super) addend: i64,
}

impl Image {
    /// Adds a function, whose calls are at offsets from its own begin.
    pub(super) fn add(
        &mut self,
        function: &[u8],
        calls: impl IntoIterator<Item = Link>,
    ) -> Result<(), CompileError> {
        let begin = self.bytes.len().next_multiple_of(ALIGNMENT);
        if begin + function.len() > CODE_LEN_MAX {
            return Err(CompileError::TooLarge { limit: "bytes of code", max: CODE_LEN_MAX });
        }
        self.bytes.resize(begin, 0);
        self.bytes.extend_from_slice(function);
        self.begins.push(begin);
        self.calls.extend(calls.into_iter().map(|call| Link { offset: begin + call.offset, ..call }));
        Ok(())
    }

    /// Fills in the calls, and makes it executable.
    pub(super) fn finish(mut self) -> Result<Code, CompileError> {
        for call in std::mem::take(&mut self.calls) {
            self.fill_in(&call)
                .ok_or_else(|| CompileError::Generator(format!("a link of kind {}", call.kind)))?;
        }
        Code::new(&self.bytes)
    }

    fn fill_in(&mut self, call: &Link) -> Option<()> {
        let target = i64::try_from(*self.begins.get(call.target)?).ok()?;
        let distance = target + call.addend - i64::try_from(call.offset).ok()?;
        let place = self.bytes.get_mut(call.offset..call.offset.checked_add(4)?)?;
        let place: &mut [u8; 4] = place.try_into().ok()?;
        match call.kind {
            Reloc::X86CallPCRel4 => *place = i32::try_from(distance).ok()?.to_le_bytes(),
            Reloc::Arm64Call => {
                // The lower 26 bits of the instruction count instructions of four bytes.
                let distance = i32::try_from(distance / 4).ok()?;
                let instruction = u32::from_le_bytes(*place) & !0x03ff_ffff;
                *place = (instruction | (distance as u32 & 0x03ff_ffff)).to_le_bytes();
            }
            _ => return None,
        }
        Some(())
    }
}

/// Executable memory.
pub(super) struct Code {
    begin: NonNull<c_void>,
    len: usize,
}

// SAFETY: nothing writes to the memory any more; any thread may execute it, and any may unmap it when nobody else has it.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    fn new(bytes: &[u8]) -> Result<Self, CompileError> {
        let len = bytes.len().max(1);
        // SAFETY: a mapping of its own, wherever the system has room.
        let begin = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let begin = NonNull::new(begin.map_err(CompileError::Memory)?);
        let begin = begin.ok_or(CompileError::Memory(rustix::io::Errno::NOMEM))?;
        // From here on the memory is given back, whatever happens.
        let code = Self { begin, len };
        // SAFETY: the mapping has that many bytes, can be written, and nobody else knows of it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), begin.as_ptr().cast(), bytes.len()) };
        // SAFETY: the mapping is ours, and nothing borrows from it.
        unsafe { rustix::mm::mprotect(begin.as_ptr(), len, MprotectFlags::READ | MprotectFlags::EXEC) }
            .map_err(CompileError::Memory)?;
        // x86-64 lets every core see instructions by itself.
        #[cfg(target_arch = "aarch64")]
        code.publish()?;
        Ok(code)
    }

    /// The function that the memory begins with.
    pub(super) fn first(&self) -> Function {
        // SAFETY: the image begins with the code of a function of this type, made for this processor and for the convention of
        // `extern "C"`. It is there as long as `self`, who never hands the pointer out of the compiler.
        unsafe { std::mem::transmute::<*mut c_void, Function>(self.begin.as_ptr()) }
    }

    /// How many bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Lets every core see the instructions: cleans them out of the caches of data, drops what caches of instructions have there, and
    /// has all threads begin anew with fetching.
    #[cfg(target_arch = "aarch64")]
    fn publish(&self) -> Result<(), CompileError> {
        use std::arch::asm;

        let (begin, end) = (self.begin.as_ptr().addr(), self.begin.as_ptr().addr() + self.len);
        let sizes: usize;
        // SAFETY: reads a register that every process may read.
        unsafe { asm!("mrs {}, ctr_el0", out(reg) sizes, options(nomem, nostack)) };
        let (data_line, instruction_line) = (4usize << ((sizes >> 16) & 15), 4usize << (sizes & 15));
        for line in (begin & !(data_line - 1)..end).step_by(data_line) {
            // SAFETY: writes a line of our own mapping back to where instructions are fetched from.
            unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack)) };
        }
        // SAFETY: a barrier.
        unsafe { asm!("dsb ish", options(nostack)) };
        for line in (begin & !(instruction_line - 1)..end).step_by(instruction_line) {
            // SAFETY: drops a line of our own mapping from the caches of instructions.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack)) };
        }
        // SAFETY: barriers.
        unsafe { asm!("dsb ish", "isb", options(nostack)) };
        synchronise_cores().map_err(CompileError::Publish)
    }
}

/// Other cores may have fetched from these addresses before. Where this is forbidden, as a filter of system calls can, nobody knows what they
/// would execute.
#[cfg(target_arch = "aarch64")]
fn synchronise_cores() -> Result<(), rustix::io::Errno> {
    use rustix::thread::{MembarrierCommand, membarrier};

    membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)?;
    membarrier(MembarrierCommand::PrivateExpeditedSyncCore)
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and functions in it run only while somebody has `self`. That it cannot be unmapped would only
        // leave it where it is.
        let _ = unsafe { rustix::mm::munmap(self.begin.as_ptr(), self.len) };
    }
}
