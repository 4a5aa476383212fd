//! A target on one network of the reactor's or on the other, for nothing but their comparison.

use std::net::SocketAddr;

use ob_core::{Clock, DeviceCompletion, DeviceInfo, DeviceOp, Instant, Net, Refused, Token};
use ob_io::{
    Config, Decision, Event, IdlePolicy, MemoryDevice, MonotonicClock, Reactor, SPIN_DEFAULT, TcpNet,
    UringNet, UringNetBuffers, Wait, available_cores,
};
use ob_nvme::driver::{Store, TargetDriver};
use ob_nvme::target::control::{
    AddressFamily, BackendId, Control, ControlConfig, NamespaceSpec, PortKey, PortSpec, SubsystemSpec,
    TransportAddress,
};
use ob_nvme::target::{Target, TargetConfig};
use ob_wire_nvme::text::Nqn;

use super::target::SUBSYSTEM;
use crate::bench::BenchFailure;

const CONNECTIONS_MAX: u32 = 64;
const BLOCK: u32 = 512;

/// The command line, which the benchmark makes by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct NvmeCardOptions {
    /// Where to listen
    #[arg(long)]
    pub listen: SocketAddr,
    /// Bytes of the namespace
    #[arg(long)]
    pub bytes: usize,
    /// Whether the kernel receives by itself
    #[arg(long)]
    pub multishot: bool,
}

struct Memory(MemoryDevice);

impl Store for Memory {
    fn info(&self, _: BackendId) -> Option<DeviceInfo> {
        Some(ob_core::Device::info(&self.0))
    }

    fn submit(&mut self, _: BackendId, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        ob_core::Device::submit(&mut self.0, token, op)
    }

    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)> {
        Some((BackendId(0), ob_core::Device::poll(&mut self.0)?))
    }

    fn next_due(&self) -> Option<Instant> {
        ob_core::Device::next_due(&self.0)
    }
}

/// Runs it until it is killed.
pub fn run_nvme_card(options: &NvmeCardOptions) -> Result<(), BenchFailure> {
    let reactor = Reactor::new(&Config::default())?;
    let handle = reactor.handle();
    if options.multishot {
        let net = UringNet::new(&handle, CONNECTIONS_MAX, UringNetBuffers::default())?;
        serve(options, reactor, net, UringNet::handle)
    } else {
        let net = TcpNet::new(&handle, CONNECTIONS_MAX);
        serve(options, reactor, net, TcpNet::handle)
    }
}

fn serve<N: Net>(
    options: &NvmeCardOptions,
    mut reactor: Reactor,
    net: N,
    take: impl Fn(&mut N, &Event) -> bool,
) -> Result<(), BenchFailure> {
    let device = MemoryDevice::new(options.bytes, BLOCK);
    let mut control = Control::new(ControlConfig::default());
    let subsystem = control.add_subsystem(SubsystemSpec::open(Nqn::new(SUBSYSTEM)?, "BENCH"))?;
    control.add_namespace(
        subsystem,
        &NamespaceSpec {
            nsid: Some(1),
            backend: BackendId(0),
            blocks: options.bytes as u64 / u64::from(BLOCK),
            block_len: BLOCK,
            uuid: [1; 16],
            nguid: [1; 16],
            volatile_cache: false,
            deallocated_reads_zero: false,
            ana_group: 1,
            read_only: false,
        },
    )?;
    control.add_port(PortSpec {
        port: PortKey(1),
        address: TransportAddress {
            family: AddressFamily::Ipv4,
            address: options.listen.ip().to_string(),
            service: options.listen.port(),
        },
        discovery_only: false,
    })?;
    let mut driver = TargetDriver::new(net, Memory(device), Target::new(TargetConfig::default(), control));
    driver.listen(options.listen, PortKey(1))?;
    let mut policy = IdlePolicy::new(SPIN_DEFAULT, available_cores());
    let mut events = Vec::new();
    loop {
        let now = MonotonicClock.now();
        let due = [driver.next_due(), reactor.handle().next_timer()].into_iter().flatten().min();
        let wait = match policy.decide(now, due) {
            Decision::Spin => Wait::Poll,
            Decision::Sleep { until } => Wait::Until(until),
        };
        reactor.turn(wait, &mut events);
        for event in events.drain(..) {
            take(driver.net_mut(), &event);
        }
        let now = MonotonicClock.now();
        let turn = driver.turn(now);
        if turn.events > 0 || turn.has_more {
            policy.on_event(now);
        }
    }
}
