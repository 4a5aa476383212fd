//! Calls every helper, and puts what it gives into the scratch; for `tests/objects.rs`.

#![no_std]

use outboard_program::StorageContext;
use outboard_program::helpers::{compare, copy, crc32c, log, varint};
use outboard_program::numbers::write_u64;

/// Where in the scratch the bytes begin that the data is compared with, and how many they are.
const COMPARED: usize = 64;
const COMPARED_LEN: usize = 8;
/// Bytes of data that are looked at.
const LEN_MAX: usize = 256;

/// Fails where there is too much data.
#[unsafe(link_section = "storage/helpers")]
#[unsafe(no_mangle)]
pub extern "C" fn call_helpers(context: &mut StorageContext<'_>) -> u64 {
    call_all(context).map_or(1, |()| 0)
}

#[inline(always)]
fn call_all(context: &mut StorageContext<'_>) -> Option<()> {
    let (data, offset) = (context.data(), context.offset());
    if data.len() > LEN_MAX {
        return None;
    }
    let scratch = context.scratch();
    write_u64(scratch, 0, crc32c(offset as u32, data).into())?;
    let (value, len) = varint(data).unwrap_or((7, 0));
    write_u64(scratch, 8, value)?;
    write_u64(scratch, 16, len as u64)?;
    let order = compare(data, scratch.get(COMPARED..COMPARED + COMPARED_LEN)?);
    write_u64(scratch, 24, order as i64 as u64)?;
    let copied = copy(scratch.get_mut(128..128 + 16)?, data);
    write_u64(scratch, 32, copied as u64)?;
    log(offset, copied as u64);
    context.done = 1;
    Some(())
}
