//! The host: attaches to the card over the link, and answers what the card does not answer by itself.

use super::{Half, HalfError, Life, Readiness};
use crate::config::{HostConfig, LinkKind};
use crate::signals::StopSignal;

/// Runs the host until SIGTERM: calls `ready` once, when it can take requests.
pub fn run_host(config: &HostConfig, ready: &mut dyn FnMut(Readiness)) -> Result<(), HalfError> {
    let stop = StopSignal::install().map_err(HalfError::system("catch signals"))?;
    let life = Life::begin(Half::Host, &config.directory)?;
    ready(Readiness {
        half: Half::Host,
        pid: std::process::id(),
        incarnation: life.incarnation().0,
        link: link_endpoint(config),
        status: None,
        services: Vec::new(),
    });
    tracing::info!(incarnation = life.incarnation().0, "host ready");
    stop.wait().map_err(HalfError::system("wait for signals"))?;
    tracing::info!("host stopping");
    Ok(())
}

/// Where this host looks for its card.
fn link_endpoint(config: &HostConfig) -> String {
    let kind = config.link.kind;
    match kind {
        LinkKind::Shm | LinkKind::Model => format!("{} {}", kind.name(), config.link.socket.display()),
        LinkKind::Tcp => format!("{} {}", kind.name(), config.link.card),
    }
}
