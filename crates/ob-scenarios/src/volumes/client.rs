//! Clients: initiators that ask for a few blocks, often the same ones, and write down what they were told.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::Instant;
use ob_nvme::initiator::{Data, Error, Options, Queue, Request, RetryPolicy};
use ob_sim::{Failure, Network, Rng};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};

use super::judge::{Asked, History, Said, Stamp, content, stamp_of};
use super::plan::{Plan, Sort};
use super::{NQN, PORT, SECOND, client_node, target_node};
use crate::nvme::host::Host;

const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) sort: Sort,
    stamp: Stamp,
    first: u64,
    blocks: u64,
    called: Instant,
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcomes {
    pub(super) answered: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    pub(super) full: u64,
}

/// A client, over all of its lives.
pub(super) struct Client {
    number: usize,
    /// To which it is connected.
    pub(super) tier: usize,
    host: Host,
    pub(super) ops: BTreeMap<u64, Op>,
    pub(super) outcomes: Outcomes,
    /// Something was asked of it that it has not looked at.
    has_more: bool,
}

impl Client {
    pub(super) fn new(
        (number, tier): (usize, usize),
        plan: &Plan,
        network: &Network,
        rng: Rng,
        now: Instant,
    ) -> Result<Self, Failure> {
        let host = connect((number, tier), plan, network, rng, now)?;
        Ok(Self { number, tier, host, ops: BTreeMap::new(), outcomes: Outcomes::default(), has_more: true })
    }

    /// It dies, and another life of it begins. What it had asked for may be done all the same.
    pub(super) fn begin_anew(
        &mut self,
        tier: usize,
        plan: &Plan,
        network: &Network,
        rng: Rng,
        now: Instant,
        history: &mut History,
    ) -> Result<(), Failure> {
        for (_, op) in std::mem::take(&mut self.ops) {
            self.outcomes.lost += 1;
            op.note(self.number, None, history);
        }
        self.tier = tier;
        self.host = connect((self.number, tier), plan, network, rng, now)?;
        self.has_more = true;
        Ok(())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.host.is_ready()
    }

    /// When it has something to do, if nothing comes before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.has_more { Some(Instant::default()) } else { self.host.next_due() }
    }

    /// Asks for something.
    pub(super) fn ask(&mut self, now: Instant, id: u64, op: Op, plan: &Plan) {
        self.host.submit(now, id, request(&op, plan));
        self.has_more = true;
        self.ops.insert(id, op);
    }

    /// One turn; how many requests were answered, well or not.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        plan: &Plan,
        history: &mut History,
    ) -> Result<usize, Failure> {
        self.has_more = false;
        self.host.turn(now);
        let mut answered = 0;
        while let Some((id, outcome)) = self.host.next_outcome() {
            let Some(op) = self.ops.remove(&id) else { continue };
            answered += 1;
            self.hear(now, &op, &outcome.map(|answer| answer.data), plan, history)?;
        }
        Ok(answered)
    }

    /// Why it will never get anything again.
    pub(super) fn over(&self) -> Option<&Error> {
        self.host.over()
    }

    fn hear(
        &mut self,
        now: Instant,
        op: &Op,
        outcome: &Result<Vec<u8>, Error>,
        plan: &Plan,
        history: &mut History,
    ) -> Result<(), Failure> {
        let counts = &mut self.outcomes;
        match outcome {
            Ok(data) => {
                counts.answered += 1;
                op.note(self.number, Some((now, data, plan)), history);
                if op.sort == Sort::Read {
                    op.check(data, plan)?;
                }
            }
            Err(error) => {
                match error {
                    Error::Command { status, .. } if is(*status, Status::CAPACITY_EXCEEDED) => {
                        counts.full += 1;
                    }
                    Error::Command { status, .. } if may_be(*status) || op.may_be_gone(*status) => {
                        counts.refused += 1;
                    }
                    Error::Command { status, .. } => {
                        return Err(Failure::new(format!("{op:?} was answered with {status}")));
                    }
                    _ => counts.lost += 1,
                }
                op.note(self.number, None, history);
            }
        }
        Ok(())
    }

    /// What it has not been told, at the end.
    pub(super) fn close(&mut self, history: &mut History) {
        for op in std::mem::take(&mut self.ops).into_values() {
            op.note(self.number, None, history);
        }
    }

    pub(super) fn describe(&self) -> String {
        let ops: Vec<String> = self
            .ops
            .iter()
            .map(|(id, op)| format!("{id} {:?} {}+{}", op.sort, op.first, op.blocks))
            .collect();
        let (number, tier, is_ready) = (self.number, self.tier, self.is_ready());
        format!("client {number} of tier {tier} is ready {is_ready}, and waits for {}", ops.join(", "))
    }
}

/// Whether a status is this one, whoever may retry.
fn is(status: Status, other: Status) -> bool {
    status == other || status == other.with_do_not_retry()
}

/// What a client is told while things go wrong.
fn may_be(status: Status) -> bool {
    is(status, Status::NAMESPACE_NOT_READY) || is(status, Status::ABORT_REQUESTED)
}

impl Op {
    /// Of these blocks; a write of `stamp`, if it is one.
    pub(super) fn new(sort: Sort, stamp: Stamp, first: u64, blocks: u64, called: Instant) -> Self {
        let stamp = if sort == Sort::Write { stamp } else { 0 };
        Self { sort, stamp, first, blocks, called }
    }

    pub(super) fn is_second(&self) -> bool {
        self.first >= SECOND
    }

    /// Whether a status says that there are no such blocks, which an operator may have seen to.
    fn may_be_gone(&self, status: Status) -> bool {
        let is_none = is(status, Status::INVALID_NAMESPACE) || is(status, Status::LBA_OUT_OF_RANGE);
        is_none && self.is_second()
    }

    /// Numbers for the trace.
    pub(super) fn words(&self, id: u64, client: usize) -> [u64; 6] {
        [id, client as u64, self.sort as u64, self.first, self.blocks, self.stamp]
    }

    /// Writes down what was asked, and what was said if something was.
    fn note(&self, client: usize, said: Option<(Instant, &[u8], &Plan)>, history: &mut History) {
        if self.sort == Sort::Flush {
            return;
        }
        let called = self.called.nanoseconds();
        for block in self.first..self.first + self.blocks {
            let asked = Asked { block, write: (self.sort != Sort::Read).then_some(self.stamp) };
            let returned = said.map(|(at, data, plan)| {
                let reply = match self.sort {
                    Sort::Read => Said::Has(self.stamp_in(data, block, plan).unwrap_or(Stamp::MAX)),
                    _ => Said::Done,
                };
                (at.nanoseconds(), reply)
            });
            history.add(client, asked, called, returned);
        }
    }

    fn stamp_in(&self, data: &[u8], block: u64, plan: &Plan) -> Result<Stamp, Failure> {
        let len = plan.block_len.bytes() as usize;
        let at = (block - self.first) as usize * len;
        stamp_of(data.get(at..at + len).unwrap_or_default(), block)
    }

    /// Whether somebody has written what was read.
    fn check(&self, data: &[u8], plan: &Plan) -> Result<(), Failure> {
        let len = plan.block_len.bytes() as usize * self.blocks as usize;
        if data.len() != len {
            return Err(Failure::new(format!("{self:?} was answered with {} bytes", data.len())));
        }
        (self.first..self.first + self.blocks)
            .try_for_each(|block| self.stamp_in(data, block, plan).map(drop))
    }
}

fn connect(
    (number, tier): (usize, usize),
    plan: &Plan,
    network: &Network,
    rng: Rng,
    now: Instant,
) -> Result<Host, Failure> {
    let host_id = [1 + number as u8; 16];
    let options = Options::new(Network::address(target_node(plan, tier), PORT), NQN, host_id)
        .map_err(|error| Failure::new(format!("no such name: {error}")))?;
    let options = Options {
        queues: plan.queues,
        depth: plan.depth,
        keep_alive: KEEP_ALIVE,
        command_timeout: plan.command_timeout,
        // What is sent anew is another operation.
        retry: RetryPolicy::never(),
        ..options
    };
    Ok(Host::new(network.attach(client_node(plan, number)), options, rng, now))
}

fn request(op: &Op, plan: &Plan) -> Request {
    // Of a block's number the upper part says of which disk it is.
    let (namespace, first) = (NamespaceId(if op.is_second() { 2 } else { 1 }), op.first & (SECOND - 1));
    let len = op.blocks as u32 * plan.block_len.bytes();
    let plain = |opcode: IoOpcode| {
        // Every other one may give its blocks back.
        let fields = BlockCommand {
            deallocate: opcode == IoOpcode::WriteZeroes && op.first.is_multiple_of(2),
            ..BlockCommand::new(namespace, first, op.blocks as u32)
        };
        fields.encode(opcode, CommandId(0), DataPointer::None)
    };
    let (entry, data) = match op.sort {
        Sort::Read => (plain(IoOpcode::Read), Data::ToHost(len)),
        Sort::Write => {
            let bytes = content(op.stamp, op.first, op.blocks, plan.block_len.bytes() as usize);
            (plain(IoOpcode::Write), Data::ToController(bytes.into()))
        }
        Sort::Zero => (plain(IoOpcode::WriteZeroes), Data::None),
        Sort::Discard => {
            let ranges = DatasetManagement {
                namespace,
                ranges: 1,
                deallocate: true,
                integral_write: false,
                integral_read: false,
            };
            let range = BlockRange { start: first, blocks: op.blocks as u32 }.encode();
            let bytes = zerocopy::IntoBytes::as_bytes(&range).to_vec();
            (ranges.encode(CommandId(0), DataPointer::None), Data::ToController(bytes.into()))
        }
        Sort::Flush => (SubmissionEntry::new(IoOpcode::Flush.code(), CommandId(0), namespace), Data::None),
    };
    Request { queue: Queue::Io, entry, data, is_idempotent: false, may_be_short: false, expects: None }
}
