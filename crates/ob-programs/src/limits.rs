//! What a tenant may have.

use ob_ebpf::hooks::CALL_FUEL_MAX;

/// Limits of a tenant. Exceeding one is told to that tenant, and changes nothing for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Objects.
    pub objects: usize,
    /// Bytes of an object.
    pub object_len: usize,
    /// Instructions of all its programs together: native code and the time to make it grow with them.
    pub instructions: usize,
    /// Fuel of a call: about a nanosecond each.
    pub call_fuel: u32,
    /// Thousandths of a core that its programs may take.
    pub share: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            objects: 16,
            object_len: ob_ebpf::elf::OBJECT_LEN_MAX,
            instructions: 4 * ob_ebpf::isa::INSTRUCTIONS_MAX,
            call_fuel: CALL_FUEL_MAX,
            share: 500,
        }
    }
}
