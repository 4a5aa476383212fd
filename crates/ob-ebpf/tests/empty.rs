//! Memory without bytes: pointers to it are compared as pointers to any other.

#![cfg(feature = "compiler")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::Arc;

use ob_ebpf::call::{Call, NoLog, NoTable};
use ob_ebpf::compiler::{self, compile};
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::text::assemble;
use ob_ebpf::verifier::{self, verify};
use ob_ebpf::world::{Entry, Field, FieldKind, World};

const WORLD: World = World {
    name: "empty",
    entry: Entry::Context,
    fields: &[
        Field { name: "data", kind: FieldKind::Data, purpose: "" },
        Field { name: "scratch", kind: FieldKind::Scratch, purpose: "" },
    ],
    scratch_len: 0,
    data_len_max: 64,
    table_value_len: 0,
    is_called_by_name: false,
};

#[test]
fn pointers_in_front_of_nothing_are_below_it_and_not_null() {
    let pointers =
        ["r6 = *(u64 *)(r1 + 0)", "r6 = *(u64 *)(r1 + 8)", "r6 = read_only ll", "r6 = per_call ll"];
    for pointer in pointers {
        for by in [1, 2, 8, 9, 4096] {
            // Bits of the result say which comparisons held that must not.
            let text = format!(
                "{pointer}\n r0 = 0\n r2 = r6\n r2 -= {by}\n if r2 < r6 goto +1\n r0 |= 1\n if r2 != 0 goto +1\n r0 |= 2\n exit"
            );
            let program = Arc::new(assemble(&text).unwrap().program().unwrap());
            let verified = verify(&program, &WORLD, verifier::Options::default()).unwrap().verified;
            let compiled = compile(&verified, compiler::Options { keep_checks: true }).unwrap();
            let mut interpreter = Interpreter::new();
            let mut run = |is_compiled: bool| {
                let (scratch, context) = (&mut [][..], &mut [0; 2][..]);
                let mut call = Call { data: &[], scratch, context, fuel: 100, table: &NoTable, log: &NoLog };
                match is_compiled {
                    true => compiled.run(&mut call),
                    false => interpreter.run(&program, &WORLD, &mut call),
                }
            };
            assert_eq!([run(false), run(true)], [Ok(0); 2], "{text}");
        }
    }
}
