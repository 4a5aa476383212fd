//! What can be typed after `outboard pool`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

use super::command::{AnswerOptions, ask};
use super::{PoolRequest, ServerFacts, VolumesReply, VolumesRequest};
use crate::cli::CommandError;
use crate::terminal::{bytes, counted, say, table};

/// The commands about a pool's chunk servers.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the chunk servers
    #[command(after_help = "\
Examples:
  outboard pool ls
  outboard pool ls --json | jq -r '.servers[] | select(.health == \"away\").id'

USED is what chunks have there, PROMISED what open ones may still take. REPLICAS are those that the
pool's metadata names there, of all tiers' volumes; when a server that is drained has none any more,
`outboard pool rm` takes it out.")]
    Ls(AnswerOptions),
    /// Take a chunk server in, or in again
    #[command(after_help = "\
Examples:
  outboard pool add 10.0.0.7:4440
  outboard pool add 10.0.0.7:4440 --domain rack-7    fails together with what else is in rack 7

It must run, be empty or of this pool, and be reached from all tiers. One that is drained is filled
again; one that has moved is looked for at its new address from then on. Replicas that are missing
are made there at once.")]
    Add(AddOptions),
    /// Have what a chunk server has copied to others
    #[command(after_help = "\
Examples:
  outboard pool drain 00000000000000ab
  outboard pool ls                           shows how much is left, and whether it waits for room

It goes on, at `rebuild_rate`, whatever is restarted meanwhile, and takes nothing away before there
is another replica: with too few other servers it waits until one is added, and is written to until
then. `outboard pool add ADDRESS` ends it.")]
    Drain(IdOptions),
    /// Take a chunk server out that is empty, or gone for good
    #[command(after_help = "\
Examples:
  outboard pool rm 00000000000000ab
  outboard pool rm 00000000000000ab --accept-loss    though what nobody else has is lost with it

One that is there and has replicas is refused: drain it, or stop it first. Replicas of one that is gone
are made anew at once, and nobody waits for it any more. Of what no other server that is there has
it is refused, and says how much that is.")]
    Rm(RemoveOptions),
}

/// `outboard pool add`.
#[derive(Clone, Debug, Args)]
pub struct AddOptions {
    /// Where it is, such as 10.0.0.7:4440
    pub address: SocketAddr,
    /// What fails together with it [default: what it says itself]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// `outboard pool drain`.
#[derive(Clone, Debug, Args)]
pub struct IdOptions {
    /// Which: 16 digits, as `outboard pool ls` shows them
    pub id: String,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// `outboard pool rm`.
#[derive(Clone, Debug, Args)]
pub struct RemoveOptions {
    /// Which: 16 digits, as `outboard pool ls` shows them
    pub id: String,
    /// Though what nobody else has is lost with it
    #[arg(long)]
    pub accept_loss: bool,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// Does what was typed.
pub(crate) fn run(command: &PoolCommand) -> Result<(), CommandError> {
    let (answer, request) = match command {
        PoolCommand::Ls(answer) => (answer, PoolRequest::List),
        PoolCommand::Add(AddOptions { address, domain, answer }) => {
            (answer, PoolRequest::Add { address: *address, domain: domain.clone() })
        }
        PoolCommand::Drain(IdOptions { id, answer }) => (answer, PoolRequest::Drain { id: id.clone() }),
        PoolCommand::Rm(RemoveOptions { id, accept_loss, answer }) => {
            (answer, PoolRequest::Remove { id: id.clone(), accept_loss: *accept_loss })
        }
    };
    let reply = ask(answer, VolumesRequest::Pool(request))?;
    if answer.json {
        say(&serde_json::to_string_pretty(&reply).map_err(std::io::Error::from)?)?;
    } else {
        say(&show(command, &reply))?;
    }
    Ok(())
}

fn show(command: &PoolCommand, reply: &VolumesReply) -> String {
    let VolumesReply::Servers(servers) = reply else { return String::new() };
    let one = servers.first().and_then(|server| Some((server.id.clone()?, server.address.as_str())));
    match (command, one) {
        (PoolCommand::Add(_), Some((id, address))) => format!("{id} at {address} is of the pool"),
        (PoolCommand::Drain(_), Some((id, address))) => format!(
            "{id} at {address} is drained: what it has is copied to others; `outboard pool ls` shows how much is left"
        ),
        (PoolCommand::Rm(_), Some((id, address))) => {
            format!("{id} at {address} is out of the pool; what it had is made anew from what others have")
        }
        _ => show_all(servers),
    }
}

/// All of them.
pub(super) fn show_all(servers: &[ServerFacts]) -> String {
    let row = |one: &ServerFacts| {
        vec![
            one.id.clone().unwrap_or_else(|| "-".to_owned()),
            one.address.clone(),
            if one.domain.is_empty() { "-".to_owned() } else { one.domain.clone() },
            state(one),
            match &one.trouble {
                None => one.health.clone(),
                Some(why) => format!("{} ({why})", one.health),
            },
            bytes(one.used),
            bytes(one.promised),
            bytes(one.free),
            one.replicas.to_string(),
        ]
    };
    let names = ["id", "address", "domain", "state", "health", "used", "promised", "free", "replicas"];
    table(&names, &servers.iter().map(row).collect::<Vec<_>>())
}

/// Whether it takes chunks, and how far one is that is emptied.
fn state(one: &ServerFacts) -> String {
    match (one.state.as_str(), one.replicas) {
        ("draining", 0) => "drained (`outboard pool rm` takes it out)".to_owned(),
        ("draining", left) => {
            let left = counted(left, "replica", "replicas");
            let room =
                if one.waits_for_room { ", waits for room: `outboard pool add` another server" } else { "" };
            format!("draining ({left} left, {}{room})", bytes(one.stored))
        }
        (state, _) => state.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerFacts {
        ServerFacts {
            id: Some("00000000000000ab".to_owned()),
            address: "10.0.0.7:4440".to_owned(),
            domain: "rack-7".to_owned(),
            state: "in".to_owned(),
            health: "ready".to_owned(),
            trouble: None,
            capacity: 16 << 30,
            used: 2 << 30,
            promised: 1 << 30,
            free: 13 << 30,
            replicas: 7,
            stored: 5 << 20,
            waits_for_room: false,
        }
    }

    #[test]
    fn servers_are_shown_with_how_far_they_are() {
        let all = show_all(&[server()]);
        for part in ["00000000000000ab", "rack-7", "ready", "13.0 GiB", " 7"] {
            assert!(all.contains(part), "{part}: {all}");
        }
        let draining = ServerFacts { state: "draining".to_owned(), ..server() };
        let all = show_all(std::slice::from_ref(&draining));
        assert!(all.contains("draining (7 replicas left, 5.0 MiB)"), "{all}");
        let all = show_all(&[ServerFacts { waits_for_room: true, ..draining.clone() }]);
        assert!(all.contains("waits for room: `outboard pool add`"), "{all}");
        let all = show_all(&[ServerFacts { replicas: 0, ..draining }]);
        assert!(all.contains("drained (`outboard pool rm`"), "{all}");
        let unknown = ServerFacts { id: None, domain: String::new(), ..server() };
        let refused = ServerFacts {
            health: "refused".to_owned(),
            trouble: Some("it is another pool's".to_owned()),
            ..unknown
        };
        assert!(show_all(&[refused]).contains("refused (it is another pool's)"));
    }
}
