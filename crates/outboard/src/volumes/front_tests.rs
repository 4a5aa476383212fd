//! A real initiator, a target, and the front of a port behind it; in place of the port a disk in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use ob_core::Instant;
use ob_io::{Config as ReactorConfig, Reactor, TcpNet, Wait};
use ob_nvme::driver::TargetDriver;
use ob_nvme::initiator::{Initiator, Namespace, Options, block_on};
use ob_nvme::target::control::{Backing, Control, ControlConfig, NamespaceSpec, SubsystemKey, SubsystemSpec};
use ob_nvme::target::{Target, TargetConfig};
use ob_split::card::{Arrived, Front as _, FrontAnswer, FrontKey};
use ob_volume::card::VolumeFront;
use ob_volume::plans::PAYLOAD_MAX;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{NamespaceId, Status, SubmissionEntry};
use zerocopy::FromBytes;

use super::card::NoDevices;
use crate::nvme::{challenge, port_spec};

const NQN: &str = "nqn.2026-11.io.outboard:volumes";
const BLOCK: usize = 4096;
const BLOCKS: usize = 1 << 12;
const PORT: ob_nvme::target::control::PortKey = ob_nvme::target::control::PortKey(1);

/// A target, its front, and a disk in memory that answers in place of a port.
struct Rig {
    reactor: Reactor,
    driver: TargetDriver<TcpNet, NoDevices, Rc<RefCell<VolumeFront>>>,
    front: Rc<RefCell<VolumeFront>>,
    subsystem: SubsystemKey,
    disk: Vec<u8>,
    /// Messages that were taken, and how many are kept back before one is answered.
    taken: VecDeque<Arrived>,
    kept_back: usize,
    /// Whether a host takes messages at all.
    has_host: bool,
    gone: Vec<FrontKey>,
    seen: Vec<(u8, u64, u32)>,
}

fn namespace(uuid: u8) -> NamespaceSpec {
    NamespaceSpec {
        nsid: Some(1),
        backing: Backing::Foreign,
        blocks: BLOCKS as u64,
        block_len: BLOCK as u32,
        uuid: [uuid; 16],
        nguid: [uuid; 16],
        volatile_cache: false,
        deallocated_reads_zero: true,
        deallocate_len: BLOCK as u32,
        ana_group: 1,
        read_only: false,
    }
}

impl Rig {
    fn new(hold: Duration) -> Self {
        let reactor = Reactor::new(&ReactorConfig::default()).unwrap();
        let handle = reactor.handle();
        let mut control = Control::new(ControlConfig::default()).with_random(challenge);
        let spec = SubsystemSpec::open(Nqn::new(NQN).unwrap(), "1");
        let subsystem = control.add_subsystem(spec).unwrap();
        control.add_namespace(subsystem, &namespace(1)).unwrap();
        let limits = TargetConfig {
            transfer_memory: 4 << 20,
            transfer_len_max: PAYLOAD_MAX as usize,
            compares_max: 1,
            ..TargetConfig::default()
        };
        let target = Target::new(limits, control);
        let front = Rc::new(RefCell::new(VolumeFront::new(hold)));
        let net = TcpNet::new(&handle, 64);
        let driver = TargetDriver::with_service(net, NoDevices, target, Rc::clone(&front));
        Self {
            reactor,
            driver,
            front,
            subsystem,
            disk: vec![0; BLOCK * BLOCKS],
            taken: VecDeque::new(),
            kept_back: 0,
            has_host: true,
            gone: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Serves what an initiator does on another thread, until that is over; what it gives.
    fn serve<T: Send>(
        &mut self,
        client: impl FnOnce(Namespace) -> T + Send,
        mut each_turn: impl FnMut(&mut Self),
    ) -> T {
        let address = self.driver.listen("127.0.0.1:0".parse().unwrap(), PORT).unwrap();
        self.driver.target_mut().control_mut().add_port(port_spec(PORT, address)).unwrap();
        let waker = self.reactor.handle().waker();
        std::thread::scope(|scope| {
            let client = scope.spawn(move || {
                let namespace = block_on(async {
                    let options = Options::new(address, NQN, [7; 16]).unwrap();
                    let initiator = Initiator::connect(options).await.unwrap();
                    initiator.namespace(NamespaceId(1)).await.unwrap()
                });
                let result = client(namespace);
                waker.wake();
                result
            });
            while !client.is_finished() {
                self.turn();
                each_turn(self);
            }
            client.join().unwrap()
        })
    }

    fn turn(&mut self) {
        let handle = self.reactor.handle();
        let due = if self.taken.len() > self.kept_back { Some(Instant::default()) } else { None };
        let mut events = Vec::new();
        let due = [due, self.driver.next_due()].into_iter().flatten().min();
        self.reactor.turn(Wait::Until(due), &mut events);
        for event in &events {
            self.driver.net_mut().handle(event);
        }
        let now = handle.now();
        self.driver.turn(now);
        let mut front = self.front.borrow_mut();
        while self.has_host
            && let Some(arrived) = front.next(now)
        {
            self.taken.push_back(arrived);
        }
        self.gone.extend(std::iter::from_fn(|| front.gone()));
        drop(front);
        while self.taken.len() > self.kept_back {
            self.answer_one();
        }
        self.driver.turn(now);
    }

    /// The oldest message is done on the disk, and answered.
    fn answer_one(&mut self) {
        let Some(arrived) = self.taken.pop_front() else { return };
        let entry = SubmissionEntry::ref_from_bytes(&arrived.header).unwrap();
        let opcode = IoOpcode::try_from(entry.opcode).unwrap();
        if opcode == IoOpcode::Flush {
            self.seen.push((entry.opcode, 0, 0));
            return self.front.borrow_mut().answer(arrived.key, FrontAnswer::Status(0));
        }
        let BlockCommand { start, blocks, .. } = BlockCommand::parse(entry).unwrap();
        self.seen.push((entry.opcode, start, blocks));
        let range = start as usize * BLOCK..(start as usize + blocks as usize) * BLOCK;
        let answer = match (opcode, self.disk.get_mut(range)) {
            (_, None) => FrontAnswer::Status(Status::LBA_OUT_OF_RANGE.with_do_not_retry().bits()),
            (IoOpcode::Read, Some(range)) => {
                let mut answer = arrived.answer.unwrap();
                assert_eq!(answer.len(), range.len(), "it is exactly as long as the answer");
                answer.copy_from_slice(range);
                FrontAnswer::Data(answer)
            }
            (IoOpcode::Write, Some(range)) => {
                range.copy_from_slice(&arrived.payload.unwrap());
                FrontAnswer::Status(0)
            }
            (IoOpcode::WriteZeroes, Some(range)) => {
                range.fill(0);
                FrontAnswer::Status(0)
            }
            other => panic!("no volume is asked for {other:?}"),
        };
        self.front.borrow_mut().answer(arrived.key, answer);
    }
}

fn bytes(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 7) as u8 ^ seed).collect()
}

#[test]
fn reads_and_writes_of_every_length_go_through_and_leave_nothing() {
    let mut rig = Rig::new(Duration::from_secs(20));
    rig.kept_back = 3;
    let client = |disk: Namespace| {
        block_on(async {
            // The longest transfer is a command, and what is longer several.
            for (start, blocks, seed) in
                [(0, 1, 1), (5, 32, 2), (600, 300, 5), (1000, 256, 6), (40, 100, 3), (4095, 1, 4)]
            {
                disk.write(start, bytes(blocks, seed)).await.unwrap();
                assert_eq!(disk.read(start, blocks as u64).await.unwrap(), bytes(blocks, seed));
            }
            assert_eq!(disk.read(37, 3).await.unwrap(), vec![0; 3 * BLOCK]);
            disk.flush().await.unwrap();
            disk.write_zeroes(6, 3, true).await.unwrap();
            assert_eq!(disk.read(6, 3).await.unwrap(), vec![0; 3 * BLOCK]);
        });
    };
    // Some are kept for a while, so that others overtake nobody; at last all are answered.
    rig.serve(client, |rig| {
        while rig.kept_back > 0 && rig.taken.len() <= rig.kept_back && !rig.taken.is_empty() {
            rig.answer_one();
        }
    });
    rig.turn();
    assert!(rig.front.borrow().is_idle());
    assert_eq!((rig.driver.target().memory_used(), rig.driver.target().counts().in_flight), (0, 0));
    for seen in [(600, 256), (856, 44), (1000, 256), (40, 100)] {
        let is_it = |(_, start, blocks): &&(u8, u64, u32)| (*start, *blocks) == seen;
        assert_eq!(rig.seen.iter().filter(is_it).count(), 2, "{seen:?}");
    }
}

#[test]
fn a_trim_is_a_message_each_range_and_is_over_with_the_last() {
    let mut rig = Rig::new(Duration::from_secs(20));
    rig.disk.fill(0xAA);
    let client = |disk: Namespace| {
        block_on(async {
            let ranges: Vec<_> = (0..200).map(|range| range * 10..range * 10 + 3).collect();
            disk.deallocate_ranges(&ranges).await.unwrap();
            let read = disk.read(0, 30).await.unwrap();
            for (block, bytes) in read.chunks(BLOCK).enumerate() {
                let expected = if block % 10 < 3 { 0 } else { 0xAA };
                assert!(bytes.iter().all(|byte| *byte == expected), "block {block}");
            }
            // Beyond the end: refused, whatever came before.
            let error = disk.initiator().io(beyond()).await;
            assert!(
                error.as_ref().is_err_and(|error| error
                    .status()
                    .is_some_and(|status| status.is(Status::LBA_OUT_OF_RANGE))),
                "{error:?}"
            );
        });
    };
    rig.serve(client, |_| {});
    let zeroed = rig.seen.iter().filter(|(opcode, ..)| *opcode == IoOpcode::WriteZeroes.code()).count();
    assert!(zeroed >= 200, "{zeroed}");
    assert!(rig.front.borrow().is_idle());
    assert_eq!(rig.driver.target().memory_used(), 0);
}

/// A trim of one range, behind the disk's end.
fn beyond() -> ob_nvme::initiator::RawCommand {
    use ob_nvme::initiator::{Data, RawCommand};
    use ob_wire_nvme::CommandId;
    use ob_wire_nvme::command::DataPointer;
    use ob_wire_nvme::io::{BlockRange, DatasetManagement};
    use zerocopy::IntoBytes;
    let trim = DatasetManagement {
        namespace: NamespaceId(1),
        ranges: 1,
        deallocate: true,
        integral_write: false,
        integral_read: false,
    };
    let range = BlockRange { start: BLOCKS as u64 - 1, blocks: 2 };
    let entry = trim.encode(CommandId(0), DataPointer::None);
    RawCommand {
        entry,
        data: Data::ToController(range.encode().as_bytes().to_vec().into()),
        is_idempotent: false,
    }
}

#[test]
fn what_no_host_takes_is_answered_in_time_so_that_it_is_sent_again() {
    let mut rig = Rig::new(Duration::from_millis(50));
    rig.has_host = false;
    let client = |disk: Namespace| {
        // The initiator sends it again for as long as that is so.
        block_on(disk.write(0, bytes(1, 5))).unwrap();
    };
    rig.serve(client, |rig| rig.has_host |= rig.front.borrow().counts().timed_out > 1);
    assert!(rig.front.borrow().counts().timed_out > 1);
    assert!(rig.disk.starts_with(&bytes(1, 5)));
}

/// What an initiator sends again, after the disk that it was for is gone, finds neither that nor the one in its place.
#[test]
fn what_is_sent_for_an_earlier_disk_never_reaches_the_next() {
    let mut rig = Rig::new(Duration::from_secs(20));
    // The target has taken it when the disk got its new number.
    rig.front.borrow_mut().set_namespace(NamespaceId(2), NamespaceId(1));
    let client = |disk: Namespace| block_on(disk.write(0, bytes(1, 5)));
    let error = rig.serve(client, |_| {}).unwrap_err();
    let status = Status::INVALID_NAMESPACE;
    assert!(error.status().is_some_and(|of| of.is(status) && of.do_not_retry()), "{error:?}");
    assert!(rig.seen.is_empty());
    assert!(rig.front.borrow().is_idle());
}

#[test]
fn a_host_that_is_gone_gives_up_what_it_has_taken() {
    let mut rig = Rig::new(Duration::from_secs(20));
    rig.kept_back = usize::MAX;
    rig.front.borrow_mut().set_namespace(NamespaceId(1), NamespaceId(1));
    let client = |disk: Namespace| block_on(disk.read(0, 1)).map(drop);
    let result = rig.serve(client, |rig| {
        if rig.kept_back > 0 && !rig.taken.is_empty() {
            rig.front.borrow_mut().remove_namespace(NamespaceId(1));
            // It stays with the port until a plan answers it, and the port hears that nobody wants it.
            let gone: Vec<FrontKey> = std::iter::from_fn(|| rig.front.borrow_mut().gone()).collect();
            assert_eq!(gone, [rig.taken[0].key]);
            assert!(!rig.front.borrow().is_idle());
            let control = rig.driver.target_mut().control_mut();
            control.remove_namespace(rig.subsystem, 1).unwrap();
            control.add_namespace(rig.subsystem, &namespace(2)).unwrap();
            let key = rig.taken.pop_front().map(|arrived| arrived.key).unwrap();
            let status = Status::ABORT_REQUESTED.with_do_not_retry();
            rig.front.borrow_mut().answer(key, FrontAnswer::Status(status.bits()));
            // Twice is once.
            rig.front.borrow_mut().answer(key, FrontAnswer::Status(0));
            rig.kept_back = 0;
        }
    });
    assert!(result.is_err());
    assert!(rig.front.borrow().is_idle());
    assert_eq!(rig.driver.target().memory_used(), 0);
}
