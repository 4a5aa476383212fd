//! `outboard chunkserver` as a command.

use std::net::SocketAddr;

use clap::Args;

use super::run_chunk_server;
use crate::cli::{CommandError, ConfigOptions};
use crate::logging;
use crate::worker::{self, announce};

/// `outboard chunkserver`.
#[derive(Clone, Debug, Args)]
pub struct ChunkServerOptions {
    /// The configuration; its data directory is the chunk server's own, so --data is usually given.
    #[command(flatten)]
    pub config: ConfigOptions,
    /// Where to listen [default: the address in the configuration, which is 127.0.0.1:4440]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Format its device first, which destroys whatever it holds
    #[arg(long)]
    pub format: bool,
    /// Say as a line of JSON when it is ready, or why it failed
    #[arg(long)]
    pub json: bool,
    // Set by `outboard up`: the process to die with.
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) supervisor: Option<i32>,
}

/// Runs one until SIGTERM. With a supervisor, it does not outlive it.
pub(crate) fn run(options: &ChunkServerOptions) -> Result<(), CommandError> {
    let json = options.json;
    worker::run_as(options.supervisor, json, || {
        let config = options.config.load()?.chunk_server(options.listen);
        logging::start(config.log.level);
        run_chunk_server(&config, options.format, &mut |announcement| announce(announcement, json))?;
        Ok::<(), CommandError>(())
    })
}
