//! What compiled code sees of a call: one structure, whose address it gets as its first argument, and the helpers.
//!
//! ```text
//!   Machine ─┬─ fuel, the fault's numbers                 written by the code
//!            ├─ where regions begin, the data's length    the same throughout the call
//!            ├─ frame: where the next function's begins   written before each local call
//!            ├─ table, log                                for helpers
//!            └─ stack: 8 frames of 512 bytes, the program's own first
//! ```

use std::mem::{MaybeUninit, offset_of};

use crate::call::{LogSink, TableLookup};
use crate::helpers::{self, VARINT_LEN_MAX};
use crate::isa::Size;
use crate::program::{FRAME_LEN, FRAMES_MAX};
use crate::world::{Helper, KEY_LEN_MAX};

const STACK_WORDS: usize = FRAMES_MAX * FRAME_LEN / 8;

/// The structure. Generated code knows where its fields are by the constants below.
#[repr(C)]
pub(super) struct Machine<'a> {
    /// What is left. Generated code keeps it in a register, and puts it here before it calls and when it returns.
    pub(super) fuel: u64,
    /// Which fault there was, counted from 1.
    pub(super) fault: u64,
    /// Where a check has failed, as an address relative to the region.
    pub(super) fault_offset: u64,
    /// How many bytes were asked for there.
    pub(super) fault_len: u64,
    /// Where the frame of the function begins that is being entered.
    pub(super) frame: *mut u8,
    pub(super) context: *mut u8,
    pub(super) data: *const u8,
    pub(super) data_len: usize,
    pub(super) scratch: *mut u8,
    pub(super) per_call: *mut u8,
    pub(super) table_value: *mut u8,
    pub(super) table_value_len: usize,
    /// Where the call has these. To copy them here, two words each, would wait until a hook's own writes of them have reached the cache.
    pub(super) table: &'a &'a dyn TableLookup,
    pub(super) log: &'a &'a dyn LogSink,
    /// Left as it is found: a verified program reads nothing that it has not written.
    pub(super) stack: MaybeUninit<[u64; STACK_WORDS]>,
}

static NOWHERE: u64 = 0;

/// Where memory that begins there begins for code. Where it has no bytes that is an address far from null all the same, which that of an
/// empty slice is not: pointers to somewhere in front of that would wrap around, and compare as they do nowhere else.
pub(super) fn beginning(first: *const u8, len: usize) -> *const u8 {
    if len == 0 { (&raw const NOWHERE).cast() } else { first }
}

/// Where a field is.
#[derive(Clone, Copy)]
pub(super) struct FieldOffset(pub(super) i32);

macro_rules! field {
    ($name:ident) => {
        FieldOffset(offset_of!(Machine<'static>, $name) as i32)
    };
}

pub(super) const FUEL: FieldOffset = field!(fuel);
pub(super) const FAULT: FieldOffset = field!(fault);
pub(super) const FAULT_OFFSET: FieldOffset = field!(fault_offset);
pub(super) const FAULT_LEN: FieldOffset = field!(fault_len);
pub(super) const FRAME: FieldOffset = field!(frame);
pub(super) const CONTEXT: FieldOffset = field!(context);
pub(super) const DATA: FieldOffset = field!(data);
pub(super) const DATA_LEN: FieldOffset = field!(data_len);
pub(super) const SCRATCH: FieldOffset = field!(scratch);
pub(super) const PER_CALL: FieldOffset = field!(per_call);
pub(super) const TABLE_VALUE: FieldOffset = field!(table_value);
pub(super) const STACK: FieldOffset = field!(stack);

/// What offsets of accesses of a size have to be below, in a region of so many bytes.
pub(super) const fn limit(len: usize, size: Size) -> u64 {
    (len as u64 + 1).saturating_sub(size.bytes() as u64)
}

/// What compiled functions return: `r0`, and 0 or which fault there was, counted from 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Returned {
    pub(super) result: u64,
    pub(super) fault: u64,
}

/// A compiled function: the machine, and `r1` to `r5`.
pub(super) type Function = unsafe extern "C" fn(*mut Machine<'_>, u64, u64, u64, u64, u64) -> Returned;

/// The address of the native function of a helper. It takes the machine and the arguments of the signature.
///
/// Should one of them panic, by the fault of a table or a log, the process ends: no frame of generated code can be unwound.
pub(super) fn address_of(helper: Helper) -> usize {
    match helper {
        Helper::TableLookup => (table_lookup as unsafe extern "C" fn(_, _, _) -> _) as usize,
        Helper::Copy => (copy as unsafe extern "C" fn(_, _, _, _, _) -> _) as usize,
        Helper::Crc32c => (crc32c as unsafe extern "C" fn(_, _, _, _) -> _) as usize,
        Helper::Compare => (compare as unsafe extern "C" fn(_, _, _, _, _) -> _) as usize,
        Helper::Varint => (varint as unsafe extern "C" fn(_, _, _, _, _) -> _) as usize,
        Helper::Xxh3 => (xxh3 as unsafe extern "C" fn(_, _, _) -> _) as usize,
        Helper::Log => (log as unsafe extern "C" fn(_, _, _) -> _) as usize,
    }
}

// Generated code calls these, and waits for them: a machine that it gives is alive and borrowed by nobody else. Ranges of a program may
// overlap, so where one of them is written, no other is borrowed.

/// `ob_table_lookup`.
///
/// # Safety
///
/// The machine is alive, and borrowed by nobody else; `key` has `key_len` bytes, proven or checked.
unsafe extern "C" fn table_lookup(machine: *mut Machine<'_>, key: *const u8, key_len: usize) -> *mut u8 {
    // The key may lie in the value of the last lookup, which is about to be written.
    let mut copy = [0; KEY_LEN_MAX as usize];
    let Some(copy) = copy.get_mut(..key_len) else { return std::ptr::null_mut() };
    // SAFETY: `key` is a range of so many bytes of the program's memory, and `copy` is not of that.
    unsafe { std::ptr::copy_nonoverlapping(key, copy.as_mut_ptr(), key_len) };
    // SAFETY: the machine is alive, and generated code waits for us.
    let machine = unsafe { &mut *machine };
    // SAFETY: `run` has set these to memory that is the call's own, and no other borrow of it exists.
    let value = unsafe { std::slice::from_raw_parts_mut(machine.table_value, machine.table_value_len) };
    if machine.table.lookup(copy, value) { machine.table_value } else { std::ptr::null_mut() }
}

/// `ob_copy`.
///
/// # Safety
///
/// Each address has as many bytes as the length behind it says, proven or checked; those at `to` can be written.
unsafe extern "C" fn copy(
    _machine: *mut Machine<'_>,
    to: *mut u8,
    to_len: usize,
    from: *const u8,
    from_len: usize,
) -> u64 {
    let len = helpers::copy_len(to_len, from_len);
    // SAFETY: both are ranges of at least `len` bytes of the program's memory, and `to` can be written.
    unsafe { move_bytes(from, to, len) };
    len as u64
}

/// Moves bytes, few of them as a rule: then the way to the C library is longer than the work.
///
/// # Safety
///
/// There are `len` bytes at `from`, and as many that can be written at `to`. They may overlap: all is read before anything is written.
unsafe fn move_bytes(from: *const u8, to: *mut u8, len: usize) {
    match len {
        0 => {}
        // SAFETY: the pieces are within the ranges, whichever length of these there is.
        1..=3 => unsafe {
            let (first, middle, last) = (*from, *from.add(len / 2), *from.add(len - 1));
            (*to, *to.add(len / 2), *to.add(len - 1)) = (first, middle, last);
        },
        // SAFETY: as above.
        4..=7 => unsafe { move_ends::<u32>(from, to, len) },
        // SAFETY: as above.
        8..=16 => unsafe { move_ends::<u64>(from, to, len) },
        // SAFETY: as the caller says.
        _ => unsafe { std::ptr::copy(from, to, len) },
    }
}

/// Moves the first and the last bytes of a range, of a word each, which together are all of it.
///
/// # Safety
///
/// As [`move_bytes`]; `len` is that of a word at least.
unsafe fn move_ends<Word>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - size_of::<Word>();
    // SAFETY: both words are within the ranges.
    unsafe {
        let words = (from.cast::<Word>().read_unaligned(), from.add(last).cast::<Word>().read_unaligned());
        to.cast::<Word>().write_unaligned(words.0);
        to.add(last).cast::<Word>().write_unaligned(words.1);
    }
}

/// `ob_crc32c`.
///
/// # Safety
///
/// There are `len` bytes, proven or checked, and nobody writes them meanwhile.
unsafe extern "C" fn crc32c(_machine: *mut Machine<'_>, earlier: u64, bytes: *const u8, len: usize) -> u64 {
    // SAFETY: a range of so many bytes of the program's memory, which nobody writes meanwhile.
    helpers::crc32c(earlier, unsafe { std::slice::from_raw_parts(bytes, len) })
}

/// `ob_xxh3`.
///
/// # Safety
///
/// There are `len` bytes, proven or checked, and nobody writes them meanwhile.
unsafe extern "C" fn xxh3(_machine: *mut Machine<'_>, bytes: *const u8, len: usize) -> u64 {
    // SAFETY: a range of so many bytes of the program's memory, which nobody writes meanwhile.
    helpers::xxh3(unsafe { std::slice::from_raw_parts(bytes, len) })
}

/// `ob_compare`.
///
/// # Safety
///
/// Each address has as many bytes as the length behind it says, proven or checked, and nobody writes them meanwhile.
unsafe extern "C" fn compare(
    _machine: *mut Machine<'_>,
    left: *const u8,
    left_len: usize,
    right: *const u8,
    right_len: usize,
) -> u64 {
    // SAFETY: ranges of so many bytes of the program's memory, which nobody writes meanwhile.
    let (left, right) =
        unsafe { (std::slice::from_raw_parts(left, left_len), std::slice::from_raw_parts(right, right_len)) };
    helpers::compare(left, right)
}

/// `ob_varint`.
///
/// # Safety
///
/// Each address has as many bytes as the length behind it says, proven or checked; those at `into` can be written.
unsafe extern "C" fn varint(
    _machine: *mut Machine<'_>,
    bytes: *const u8,
    len: usize,
    into: *mut u8,
    into_len: usize,
) -> u64 {
    // Both ranges may overlap: what is read is taken first.
    let mut copy = [0; VARINT_LEN_MAX];
    let len = len.min(VARINT_LEN_MAX);
    // SAFETY: `bytes` is a range of at least `len` bytes of the program's memory, and `copy` is not of that and has room.
    unsafe { std::ptr::copy_nonoverlapping(bytes, copy.as_mut_ptr(), len) };
    // SAFETY: a range of so many bytes of the program's memory that can be written; nothing else borrows it.
    let into = unsafe { std::slice::from_raw_parts_mut(into, into_len) };
    helpers::varint(copy.get(..len).unwrap_or_default(), into)
}

/// `ob_log`.
///
/// # Safety
///
/// The machine is alive, and borrowed by nobody else.
unsafe extern "C" fn log(machine: *mut Machine<'_>, first: u64, second: u64) -> u64 {
    // SAFETY: the machine is alive, and generated code waits for us.
    let machine = unsafe { &*machine };
    machine.log.log(first, second);
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_moved_as_by_way_of_a_third_place() {
        let before: Vec<u8> = (0..100).collect();
        for len in 0..=40 {
            for (from, to) in [(0, 50), (20, 20), (20, 21), (21, 20), (20, 27), (27, 20), (20, 36), (36, 20)]
            {
                let (mut moved, mut expected) = (before.clone(), before.clone());
                expected.copy_within(from..from + len, to);
                let bytes = moved.as_mut_ptr();
                // SAFETY: both ranges are within the vector.
                unsafe { move_bytes(bytes.add(from), bytes.add(to), len) };
                assert_eq!(moved, expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}
