//! The card: serves clients and status, and carries the link's far end.

use std::sync::Arc;
use std::time::Instant;

use super::{Half, HalfError, Life, Readiness};
use crate::config::{CardConfig, LinkKind};
use crate::signals::StopSignal;
use crate::status::{CardFacts, LinkFacts, Snapshot, StatusBoard, StatusServer};

/// Runs the card until SIGTERM: calls `ready` once, when everything that it serves can be reached.
pub fn run_card(config: &CardConfig, ready: &mut dyn FnMut(Readiness)) -> Result<(), HalfError> {
    let stop = StopSignal::install().map_err(HalfError::system("catch signals"))?;
    let life = Life::begin(Half::Card, &config.directory)?;
    let board = Arc::new(StatusBoard::new(first_snapshot(config, &life)));
    let server = StatusServer::start(config.status.listen, Arc::clone(&board), &config.source)?;
    ready(Readiness {
        half: Half::Card,
        pid: std::process::id(),
        incarnation: life.incarnation().0,
        link: link_endpoint(config),
        status: Some(server.address()),
        services: Vec::new(),
    });
    tracing::info!(incarnation = life.incarnation().0, status = %server.address(), "card ready");
    stop.wait().map_err(HalfError::system("wait for signals"))?;
    tracing::info!("card stopping");
    Ok(())
}

fn first_snapshot(config: &CardConfig, life: &Life) -> Snapshot {
    Snapshot {
        card: CardFacts { pid: std::process::id(), incarnation: life.incarnation(), started: Instant::now() },
        host: None,
        host_command: host_command(config),
        link: LinkFacts {
            kind: config.link.kind,
            endpoint: link_endpoint(config),
            dma: ob_core::DmaCounts::default(),
        },
        requests: Vec::new(),
    }
}

/// Where a host finds this card.
fn link_endpoint(config: &CardConfig) -> String {
    let kind = config.link.kind;
    match kind {
        LinkKind::Shm | LinkKind::Model => format!("{} {}", kind.name(), config.link.socket.display()),
        LinkKind::Tcp => format!("{} {}", kind.name(), config.link.listen),
    }
}

/// What to type to start the host of this card.
fn host_command(config: &CardConfig) -> String {
    let mut command = "outboard host".to_owned();
    if let Some(file) = config.source.file() {
        command += &format!(" --config {}", file.display());
    }
    command + &format!(" --data {}", config.data.display())
}
