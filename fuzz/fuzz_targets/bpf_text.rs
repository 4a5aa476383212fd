//! Any text as a program: refused at a place that the text has, or a program whose listing is the same program.

#![no_main]

use ob_ebpf::isa;
use ob_ebpf::text::{Listing, assemble, disassemble};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let assembled = match assemble(text) {
        Ok(assembled) => assembled,
        Err(error) => {
            assert!(error.line >= 1 && error.column >= 1);
            assert!(error.line <= text.lines().count().max(1), "{error}");
            return;
        }
    };
    let bytes = isa::encode(&assembled.decoded.instructions).expect("what was assembled has bytes");
    assert_eq!(isa::decode(&bytes).expect("and they decode"), assembled.decoded);
    let Ok(program) = assembled.program() else { return };
    let text = disassemble(&program, Listing { has_lines: false, has_data: true });
    let again = assemble(&text).expect("a listing is read").program().expect("as a program");
    assert_eq!(again.instructions(), program.instructions());
    assert_eq!((again.read_only(), again.per_call()), (program.read_only(), program.per_call()));
    assert_eq!(again.functions().len(), program.functions().len());
});
