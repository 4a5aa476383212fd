//! A thin service of storage functions behind a target: a program is chained over reads, and its scratch is the answer.

// Each test crate uses its own part of this, and none exports it.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::sync::Arc;

use ob_core::Instant;
use ob_ebpf::call::{Call, NoLog, NoTable};
use ob_ebpf::hooks::{CALL_FUEL_MAX, STORAGE, STORAGE_SCRATCH_LEN};
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::program::Program;
use ob_ebpf::text::assemble;
use ob_ebpf::verifier::{Options, verify};
use ob_nvme::driver::ForeignService;
use ob_nvme::target::{Answer, ForeignCommand, ForeignEvent, ForeignKey, ForeignOpcode, Loan, Loans, Target};
use ob_wire_nvme::Status;

/// The opcode of a chain: its first node in CDW10 and CDW11, the answer to the host.
pub const CHAIN: u8 = 0xC2;
/// Bytes of a node: where the next one is, or 0, and a value.
pub const NODE: usize = 512;
/// Reads of one chain at most.
const READS_MAX: u32 = 16;

/// Follows nodes, and adds their values up in the scratch.
const SUM: &str = "
    .data_len_min 16
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 16)
    r2 = *(u64 *)(r6 + 0)
    r3 = *(u64 *)(r6 + 8)
    r4 = *(u64 *)(r7 + 0)
    r4 += r3
    *(u64 *)(r7 + 0) = r4
    if r2 != 0 goto more
    r5 = 1
    *(u64 *)(r1 + 56) = r5
    r0 = 0
    exit
    more:
    *(u64 *)(r1 + 72) = r2
    r5 = 512
    *(u64 *)(r1 + 80) = r5
    r0 = 0
    exit
";
const DONE: usize = 7;
const NEXT_OFFSET: usize = 9;
const NEXT_LEN: usize = 10;

pub fn opcode() -> ForeignOpcode {
    ForeignOpcode::new(CHAIN, STORAGE_SCRATCH_LEN).unwrap()
}

pub fn node(next: u64, value: u64) -> Vec<u8> {
    let mut bytes = vec![0; NODE];
    bytes[..8].copy_from_slice(&next.to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes
}

impl ForeignService for Chains {
    fn turn(&mut self, _: Instant, target: &mut Target) -> bool {
        Self::turn(self, target)
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }
}

/// All chains of a target.
pub struct Chains {
    program: Program,
    interpreter: Interpreter,
    /// Commands that wait for their buffers. They hold none.
    waiting: BTreeMap<ForeignKey, ForeignCommand>,
    running: BTreeMap<ForeignKey, Chain>,
    /// Where the data of each call lay.
    pub seen_at: Vec<usize>,
    pub answered: u64,
    pub refused: u64,
    pub ended: u64,
    pub controllers_ended: u64,
}

struct Chain {
    nsid: u32,
    scratch: Loan,
    reads: u32,
}

impl Chains {
    pub fn new() -> Self {
        let program = assemble(SUM).unwrap().program().unwrap();
        verify(&Arc::new(assemble(SUM).unwrap().program().unwrap()), &STORAGE, Options::default()).unwrap();
        Self {
            program,
            interpreter: Interpreter::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            seen_at: Vec::new(),
            answered: 0,
            refused: 0,
            ended: 0,
            controllers_ended: 0,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes everything that the target has to say; whether there was anything.
    pub fn turn(&mut self, target: &mut Target) -> bool {
        let mut did = false;
        while let Some(event) = target.next_foreign() {
            did = true;
            self.take(target, event);
        }
        did
    }

    pub fn take(&mut self, target: &mut Target, event: ForeignEvent) {
        match event {
            ForeignEvent::Command(command) => {
                assert_eq!((command.entry.opcode, command.data.is_none()), (CHAIN, true));
                self.prepare(target, command);
            }
            ForeignEvent::Lent { key, loans } => self.begin(target, key, loans),
            ForeignEvent::Read { key, offset, result, .. } => self.step(target, key, offset, result),
            ForeignEvent::Aborted(key) => {
                self.waiting.remove(&key);
                self.fail(target, key, Status::ABORT_REQUESTED);
            }
            ForeignEvent::Ended(key) => {
                self.ended += 1;
                self.waiting.remove(&key);
                self.running.remove(&key);
                target.foreign_done(key, Err(Status::INTERNAL_ERROR), 0);
            }
            ForeignEvent::ControllerEnded(_) => self.controllers_ended += 1,
        }
    }

    /// Asks for all that the chain needs: the buffer of a read is used for the next one too.
    fn prepare(&mut self, target: &mut Target, command: ForeignCommand) {
        target.lend(command.key, &[STORAGE_SCRATCH_LEN as usize, NODE]).unwrap();
        self.waiting.insert(command.key, command);
    }

    fn begin(&mut self, target: &mut Target, key: ForeignKey, loans: Loans) {
        let command = self.waiting.remove(&key).expect("it was asked for");
        let [Some(scratch), Some(data), None, None] = loans else { panic!("{loans:?}") };
        let nsid = command.entry.namespace().0;
        let mut chain = Chain { nsid, scratch, reads: 0 };
        // Others have used this memory.
        chain.scratch.fill(0);
        self.running.insert(key, chain);
        self.read(target, key, command.entry.dwords10_11(), data);
    }

    fn read(&mut self, target: &mut Target, key: ForeignKey, offset: u64, into: Loan) {
        let nsid = self.running[&key].nsid;
        if let Err(refused) = target.foreign_read(key, nsid, offset, into) {
            self.fail(target, key, refused.status);
        }
    }

    fn fail(&mut self, target: &mut Target, key: ForeignKey, status: Status) {
        self.running.remove(&key);
        self.refused += 1;
        target.foreign_done(key, Err(status), 0);
    }

    fn step(&mut self, target: &mut Target, key: ForeignKey, offset: u64, result: Result<Loan, Status>) {
        let data = match result {
            Ok(data) => data,
            Err(status) => return self.fail(target, key, status),
        };
        self.seen_at.push(data.as_ptr().addr());
        let chain = self.running.get_mut(&key).expect("a read is of a chain that runs");
        chain.reads += 1;
        let mut context = [0; STORAGE.fields.len()];
        (context[5], context[6]) = (offset, u64::from(chain.reads));
        let mut call = Call {
            data: &data,
            scratch: &mut chain.scratch,
            context: &mut context,
            fuel: CALL_FUEL_MAX,
            table: &NoTable,
            log: &NoLog,
        };
        assert_eq!(self.interpreter.run(&self.program, &STORAGE, &mut call), Ok(0));
        if context[DONE] == 0 && chain.reads < READS_MAX {
            assert_eq!(context[NEXT_LEN], NODE as u64);
            return self.read(target, key, context[NEXT_OFFSET], data);
        }
        let chain = self.running.remove(&key).expect("it runs");
        self.answered += 1;
        target.foreign_done(key, Ok(Answer::Loan(chain.scratch)), u64::from(chain.reads));
    }
}
