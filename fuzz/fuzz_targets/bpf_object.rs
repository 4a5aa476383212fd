//! Any bytes as an object: refused, or programs whose instructions and whose text are the same after a round trip.

#![no_main]

use ob_ebpf::elf::Object;
use ob_ebpf::isa;
use ob_ebpf::text::{Listing, assemble, disassemble};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = Object::parse(bytes) else { return };
    // Enough to see that entries do not disturb each other, without a program for each of thousands of symbols.
    for entry in object.entries().iter().take(4) {
        let Ok(program) = object.program(Some(&entry.name)) else { continue };
        let bytes = isa::encode(program.instructions()).expect("what was decoded has bytes");
        assert_eq!(isa::decode(&bytes).expect("and they decode").instructions, program.instructions());
        // Source lines are comments: whatever the object says there, the program stays the same.
        let text = disassemble(&program, Listing { has_lines: true, has_data: true });
        let again = assemble(&text).expect("a listing is read").program().expect("as a program");
        assert_eq!(again.instructions(), program.instructions());
        assert_eq!((again.read_only(), again.per_call()), (program.read_only(), program.per_call()));
        assert_eq!(again.data_len_min(), program.data_len_min());
    }
});
