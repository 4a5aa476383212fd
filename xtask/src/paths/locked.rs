//! Where a program has instructions that lock: read-modify-writes of memory that others may have, too.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::command;

/// Their addresses in the program's file. There are none for a processor whose instructions are not known here (x86-64 is).
///
/// # Errors
/// When `objdump` does not read the program.
pub(super) fn addresses(program: &Path) -> Result<BTreeSet<u64>> {
    let mut objdump = Command::new("objdump");
    objdump.args(["--disassemble", "--no-show-raw-insn"]).arg(program);
    let output = command::capture(&mut objdump)?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(locking).collect())
}

/// The address, if the instruction in this line locks: by its prefix, or because it exchanges with memory.
fn locking(line: &str) -> Option<u64> {
    let (address, instruction) = line.split_once(":\t")?;
    let exchanges = instruction.starts_with("xchg ") && instruction.contains('(');
    if instruction.starts_with("lock ") || exchanges {
        u64::from_str_radix(address.trim(), 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_exchanges_with_memory_lock() {
        assert_eq!(
            locking("  2f167a:\tlock cmpxchg %r14,0xcfe1f5(%rip)        # fef878 <X>"),
            Some(0x2f_167a)
        );
        assert_eq!(locking("  2f16c0:\txchg   %eax,0x8(%rbx)"), Some(0x2f_16c0));
        for other in ["  2f16c4:\txchg   %ax,%ax", "  2f16c6:\tmov    %eax,(%rbx)", "0000 <lock>:", ""] {
            assert_eq!(locking(other), None);
        }
    }
}
