//! `outboard chunkserver` as a command.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use ob_format::volume::metadata::Text;

use super::run_chunk_server;
use super::status::{ask, show};
use crate::cli::{CommandError, ConfigOptions};
use crate::logging;
use crate::terminal::say;
use crate::worker::{self, announce};

/// `outboard chunkserver`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ChunkServerOptions {
    /// What else there is to do than to run one.
    #[command(subcommand)]
    pub command: Option<ChunkServerCommand>,
    /// The configuration; its data directory is the chunk server's own, so --data is usually given.
    #[command(flatten)]
    pub config: ConfigOptions,
    /// Where to listen [default: the address in the configuration, which is 127.0.0.1:4440]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// What fails together with it [default: the one in the configuration, else the machine's name]
    #[arg(long, value_name = "NAME", value_parser = domain)]
    pub domain: Option<Text<32>>,
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

/// What else can be typed after `outboard chunkserver`.
#[derive(Clone, Debug, Subcommand)]
pub enum ChunkServerCommand {
    /// Ask one that runs how it is: what it holds, its space, and which tiers are connected
    #[command(after_help = "\
Examples:
  outboard chunkserver status --data /srv/chunks
  outboard chunkserver status --data /srv/chunks --json | jq .free")]
    Status(ChunkServerStatusOptions),
}

/// `outboard chunkserver status`.
#[derive(Clone, Debug, Args)]
pub struct ChunkServerStatusOptions {
    /// Which: by its configuration or its data directory.
    #[command(flatten)]
    pub config: ConfigOptions,
    /// Show it as JSON
    #[arg(long)]
    pub json: bool,
}

fn domain(text: &str) -> Result<Text<32>, &'static str> {
    Text::new(text).filter(|domain| !domain.is_empty()).ok_or("a domain has from 1 to 32 bytes of text")
}

/// Does what was typed.
pub(crate) fn run(options: &ChunkServerOptions) -> Result<(), CommandError> {
    match &options.command {
        None => serve(options),
        Some(ChunkServerCommand::Status(options)) => {
            let config = options.config.load()?.chunk_server(None);
            let status = ask(&config.directory)?;
            let shown = match options.json {
                true => serde_json::to_string_pretty(&status).map_err(std::io::Error::from)?,
                false => show(&status),
            };
            Ok(say(&shown)?)
        }
    }
}

/// Runs one until SIGTERM. With a supervisor, it does not outlive it.
fn serve(options: &ChunkServerOptions) -> Result<(), CommandError> {
    let json = options.json;
    worker::run_as(options.supervisor, json, || {
        let mut config = options.config.load()?.chunk_server(options.listen);
        config.domain = options.domain.or(config.domain);
        logging::start(config.log.level);
        run_chunk_server(&config, options.format, &mut |announcement| announce(announcement, json))?;
        Ok::<(), CommandError>(())
    })
}
