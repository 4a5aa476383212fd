//! What SPDK's initiator is made to do, and what must come of it.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::output::{self, Figures};
use super::tools::{Finished, Program, Running, Tools};
use crate::command;
use crate::kernel::protocol::Answer;
use crate::kernel::target::{AUTHENTICATING, Target, free_port};
use crate::kernel::{AUTH_NQN, CONTROLLER_KEY, HOST_KEY, HOST_NQN, NAMESPACE_BYTES, NQN};
use crate::repository::Repository;

const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
// One second a case is enough for thousands of operations, and there are many cases.
const SECONDS: &str = "1";
const SECONDS_VERIFIED: u32 = 3;
const SECONDS_ACROSS_RESTART: u32 = 12;

// Starting takes these programs a second or two; the rest is for machines that are busy with other things.
const PATIENCE: Duration = Duration::from_secs(90);

/// A step of the verb.
pub struct Step {
    /// What is typed to run it alone.
    pub name: &'static str,
    /// One line about it.
    pub purpose: &'static str,
    /// Does it.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// Every step, in order.
pub const STEPS: &[Step] = &[
    Step { name: "discover", purpose: "the discovery log leads to the subsystem", run: discover },
    Step { name: "identify", purpose: "controller, namespace, features and log pages", run: identify },
    Step { name: "perf", purpose: "reads and writes by depth and size, digests, several queues", run: perf },
    Step { name: "verify", purpose: "what was written is what is read, digests on and off", run: verify },
    Step { name: "commands", purpose: "flush, write zeroes, deallocate, reset", run: commands },
    Step { name: "abort", purpose: "operations are aborted under way", run: abort },
    Step { name: "authentication", purpose: "DH-HMAC-CHAP of both sides; wrong keys", run: authentication },
    Step { name: "restart", purpose: "the card dies under checked I/O, and comes back", run: restart },
    Step { name: "initiator", purpose: "the other way: our initiator, SPDK's target", run: initiator },
];

/// What steps work with: SPDK, a card, and a folder for what is said.
pub struct Bench {
    /// SPDK's programs.
    pub tools: Tools,
    /// The card.
    pub target: Target,
    /// Where the card serves.
    pub port: u16,
    /// Where outputs are kept.
    pub folder: PathBuf,
    /// The card's own folder.
    pub data: PathBuf,
    /// The checkout, whose initiator is tried too.
    pub repository: Repository,
}

impl Bench {
    fn address(&self, nqn: &str) -> String {
        format!("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{} subnqn:{nqn}", self.port)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn start(&self, name: &str, program: Program, arguments: &[&str]) -> Result<Running> {
        Running::start(self.tools.command(program, arguments), &self.log(name))
    }

    fn finish(&self, name: &str, program: Program, arguments: &[&str]) -> Result<Finished> {
        self.start(name, program, arguments)?.finish(PATIENCE)
    }

    fn image(&self) -> PathBuf {
        self.data.join("data/card/nvme.img")
    }
}

fn discover(bench: &mut Bench) -> Result<()> {
    let found = bench.finish("discover", Program::Identify, &["-r", &bench.address(DISCOVERY_NQN)])?;
    output::quiet(&found)?;
    let port = bench.port.to_string();
    for (label, value) in
        [("NVM Subsystem Qualified Name:", NQN), ("Transport Service Identifier:", port.as_str())]
    {
        let entries = found.text.lines().filter_map(|line| line.trim_start().strip_prefix(label));
        if !entries.map(str::trim).any(|entry| entry == value) {
            bail!("no entry of the discovery log says `{label} {value}`:\n{}", found.text);
        }
    }
    Ok(())
}

fn identify(bench: &mut Bench) -> Result<()> {
    let told = bench.finish("identify", Program::Identify, &["-r", &bench.address(NQN)])?;
    output::quiet(&told)?;
    let blocks = (NAMESPACE_BYTES / 512).to_string();
    for (label, part) in [
        ("Subsystem NQN:", NQN),
        ("Model Number:", "Outboard"),
        ("Max Data Transfer Size:", "131072"),
        ("Asymmetric Namespace Access Log Page:", "Supported"),
        ("Number of ANA Group Descriptors :", "1"),
        ("Fused Compare & Write:", "Supported"),
        ("Volatile Write Cache:", "Present"),
        ("Namespace ID:", "1"),
        ("Size (in LBAs):", blocks.as_str()),
        ("Reservation:", "Supported"),
        ("UUID:", "-"),
    ] {
        let value = output::field(&told.text, label)
            .with_context(|| format!("identify does not say `{label}`:\n{}", told.text))?;
        if !value.contains(part) {
            bail!("`{label}` is `{value}`, without `{part}`");
        }
    }
    Ok(())
}

struct Case {
    pattern: &'static str,
    depth: &'static str,
    bytes: &'static str,
    more: &'static [&'static str],
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for bytes in ["4096", "131072"] {
        for depth in ["1", "32", "128"] {
            for pattern in ["randread", "randwrite", "randrw"] {
                cases.push(Case { pattern, depth, bytes, more: &[] });
            }
        }
        for more in [["-H"].as_slice(), &["-I"], &["-H", "-I"]] {
            cases.push(Case { pattern: "rw", depth: "32", bytes, more });
        }
    }
    // Larger than one transfer may be, so that the driver splits; a block alone; and buffers in pieces.
    cases.push(Case { pattern: "rw", depth: "8", bytes: "1048576", more: &[] });
    cases.push(Case { pattern: "randrw", depth: "32", bytes: "512", more: &[] });
    cases.push(Case { pattern: "rw", depth: "16", bytes: "65536", more: &["-O", "4096", "-H", "-I"] });
    for more in [["-P", "4"].as_slice(), &["-P", "8", "-H", "-I"]] {
        cases.push(Case { pattern: "randrw", depth: "32", bytes: "4096", more });
    }
    cases
}

fn perf(bench: &mut Bench) -> Result<()> {
    let address = bench.address(NQN);
    for (index, case) in cases().iter().enumerate() {
        let mut arguments =
            vec!["-r", &address, "-q", case.depth, "-o", case.bytes, "-w", case.pattern, "-t", SECONDS];
        if case.pattern.ends_with("rw") {
            arguments.extend(["-M", "50"]);
        }
        arguments.extend(case.more);
        let finished = bench.finish(&format!("perf-{index}"), Program::Perf, &arguments)?;
        output::quiet(&finished)?;
        let Figures { per_second, mean_us } = output::perf(&finished)?;
        let more = case.more.join(" ");
        println!(
            "spdk: {:<9} {:>7} B depth {:>3} {more:<14} {per_second:>9.0}/s {mean_us:>9.1} us",
            case.pattern, case.bytes, case.depth
        );
    }
    Ok(())
}

/// A configuration of SPDK's block layer with our namespace in it.
fn block_layer(bench: &Bench, name: &str, options: &str, controller: &str) -> Result<PathBuf> {
    let port = bench.port;
    let text = format!(
        r#"{{"subsystems": [{{"subsystem": "bdev", "config": [
  {{"method": "bdev_nvme_set_options", "params": {{{options}}}}},
  {{"method": "bdev_nvme_attach_controller", "params": {{"name": "Nvme0", "trtype": "TCP", "adrfam": "IPv4",
    "traddr": "127.0.0.1", "trsvcid": "{port}", "subnqn": "{NQN}"{controller}}}}}
]}}]}}
"#
    );
    let path = bench.folder.join(format!("{name}.json"));
    fs::write(&path, text)?;
    Ok(path)
}

/// The arguments of a run through SPDK's block layer; sockets of its own are in our folder.
fn bdevperf_arguments(bench: &Bench, config: &Path, work: &[&str], seconds: u32) -> Vec<String> {
    let socket = bench.folder.join("bdevperf.sock");
    let mut all: Vec<String> = ["--json", &config.display().to_string(), "-r", &socket.display().to_string()]
        .map(str::to_owned)
        .into();
    all.extend(["-m", "0x1", "--no-pci", "-t", &seconds.to_string()].map(str::to_owned));
    all.extend(work.iter().map(|&word| word.to_owned()));
    all
}

fn bdevperf(bench: &Bench, name: &str, config: &Path, work: &[&str]) -> Result<Figures> {
    let arguments = bdevperf_arguments(bench, config, work, SECONDS_VERIFIED);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let finished = bench.finish(name, Program::Bdevperf, &arguments)?;
    output::quiet(&finished)?;
    output::bdevperf(&finished)
}

fn verify(bench: &mut Bench) -> Result<()> {
    let digests = [
        ("plain", ""),
        ("header", r#", "hdgst": true"#),
        ("data", r#", "ddgst": true"#),
        ("both", r#", "hdgst": true, "ddgst": true"#),
    ];
    for (kind, controller) in digests {
        let config = block_layer(bench, &format!("verify-{kind}"), FLUSHES, controller)?;
        for (depth, bytes) in
            [("1", "4096"), ("128", "4096"), ("32", "512"), ("32", "131072"), ("8", "1048576")]
        {
            let work = ["-w", "verify", "-q", depth, "-o", bytes];
            let Figures { per_second, .. } =
                bdevperf(bench, &format!("verify-{kind}-{bytes}-{depth}"), &config, &work)?;
            println!("spdk: verify, digests {kind}: {bytes} B at depth {depth}: {per_second:.0}/s");
        }
    }
    Ok(())
}

// Without it SPDK answers flushes itself.
const FLUSHES: &str = r#""enable_flush": true"#;

fn commands(bench: &mut Bench) -> Result<()> {
    let config = block_layer(bench, "commands", FLUSHES, "")?;
    for pattern in ["flush", "write_zeroes", "unmap", "reset"] {
        let work = ["-w", pattern, "-q", "16", "-o", "65536"];
        let Figures { per_second, .. } = bdevperf(bench, &format!("commands-{pattern}"), &config, &work)?;
        println!("spdk: {pattern}: {per_second:.0}/s");
    }
    Ok(())
}

fn abort(bench: &mut Bench) -> Result<()> {
    let address = bench.address(NQN);
    let arguments =
        ["-r", &address, "-q", "64", "-o", "131072", "-w", "randrw", "-M", "50", "-t", SECONDS, "-c", "0x1"];
    let finished = bench.finish("abort", Program::Abort, &arguments)?;
    // Aborted operations end with an error, which is what this tool is for; so only its own verdict counts.
    if !finished.status.success() || !finished.text.contains("abort submitted") {
        bail!("`{}` ended with {}:\n{}", finished.shown, finished.status, finished.text);
    }
    Ok(())
}

fn key_file(bench: &Bench, name: &str, key: &str) -> Result<String> {
    let path = bench.folder.join(name);
    fs::write(&path, key)?;
    // SPDK refuses keys that others can read.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path.display().to_string())
}

fn authentication(bench: &mut Bench) -> Result<()> {
    bench.target.start_afresh(AUTHENTICATING)?;
    let host = key_file(bench, "host.key", HOST_KEY)?;
    let controller = key_file(bench, "controller.key", CONTROLLER_KEY)?;
    let address = format!("{} hostnqn:{HOST_NQN}", bench.address(AUTH_NQN));
    let attempt = |name: &str, keys: &[&str]| {
        let mut arguments =
            vec!["-r", &address, "-q", "8", "-o", "4096", "-w", "randrw", "-M", "50", "-t", SECONDS];
        arguments.extend(keys);
        bench.finish(&format!("authentication-{name}"), Program::Perf, &arguments)
    };
    output::perf(&attempt("host", &["--dhchap-key", &host])?)?;
    output::perf(&attempt("both", &["--dhchap-key", &host, "--dhchap-ctrlr-key", &controller])?)?;
    for (name, keys) in [
        ("none", [].as_slice()),
        // Each side's key in the other's place: rightly formed, and wrong.
        ("wrong", &["--dhchap-key", &controller]),
        ("wrong-controller", &["--dhchap-key", &host, "--dhchap-ctrlr-key", &host]),
    ] {
        let finished = attempt(name, keys)?;
        // Refused for this reason and for no other, such as a key file that SPDK does not like.
        let by_authentication =
            ["nvme_auth.c", "AUTHENTICATING"].iter().any(|word| finished.text.contains(word));
        if output::perf(&finished).is_ok() || !by_authentication {
            bail!("authentication did not refuse `{}`:\n{}", finished.shown, finished.text);
        }
    }
    Ok(())
}

/// Kills the card once blocks have been written, and starts it again.
fn kill_and_restart(bench: &mut Bench, running: &mut Running) -> Result<()> {
    let image = bench.image();
    let is_written = || fs::metadata(&image).is_ok_and(|metadata| metadata.blocks() > 2048);
    running.wait_until("something was written", PATIENCE, is_written)?;
    for order in ["kill-target", "restart-target"] {
        if let Answer::No(why) = bench.target.please(&[order]) {
            bail!("{order}: {why}");
        }
    }
    Ok(())
}

fn restart(bench: &mut Bench) -> Result<()> {
    let retries = r#""enable_flush": true, "bdev_retry_count": -1, "ctrlr_loss_timeout_sec": -1, "reconnect_delay_sec": 1"#;
    let config = block_layer(bench, "restart", retries, "")?;
    let work = ["-w", "verify", "-q", "32", "-o", "4096"];
    let arguments = bdevperf_arguments(bench, &config, &work, SECONDS_ACROSS_RESTART);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut running = bench.start("restart", Program::Bdevperf, &arguments)?;
    kill_and_restart(bench, &mut running)?;
    let finished = running.finish(PATIENCE)?;
    if !finished.text.contains("Resetting controller successful") {
        bail!("SPDK did not come back to the card:\n{}", finished.text);
    }
    // It reports the operations that it had to repeat; what counts is that none of them failed in the end.
    output::bdevperf(&finished)?;
    Ok(())
}

fn initiator(bench: &mut Bench) -> Result<()> {
    let port = free_port()?;
    let config = bench.folder.join("initiator.json");
    fs::write(&config, peer_configuration(port))?;
    let (config, socket) = (config.display().to_string(), bench.folder.join("initiator.sock"));
    let arguments = ["--json", &config, "-r", &socket.display().to_string(), "-m", "0x1", "--no-pci"];
    let mut peer = bench.start("initiator", Program::Target, &arguments)?;
    let is_up = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    peer.wait_until("SPDK's target took a connection", PATIENCE, is_up)?;
    let arguments = ["test", "--package", "ob-nvme", "--test", "ob-nvme-tests", "--", "--ignored", "peer::"];
    let mut test = command::cargo(&bench.repository, &arguments);
    test.env("OB_NVME_PEER", format!("127.0.0.1:{port}")).env("OB_NVME_PEER_NQN", NQN);
    command::run(&mut test)?;
    let ended = peer.end(PATIENCE)?;
    if !ended.status.success() {
        bail!("SPDK's target ended with {}:\n{}", ended.status, ended.text);
    }
    Ok(())
}

/// A configuration of SPDK's target with memory behind its one namespace.
fn peer_configuration(port: u16) -> String {
    let listener = |nqn: &str| {
        format!(
            r#"{{"method": "nvmf_subsystem_add_listener", "params": {{"nqn": "{nqn}", "listen_address":
      {{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "{port}"}}}}}}"#
        )
    };
    format!(
        r#"{{"subsystems": [
  {{"subsystem": "bdev", "config": [
    {{"method": "bdev_malloc_create", "params": {{"name": "Memory", "num_blocks": 131072, "block_size": 512}}}}]}},
  {{"subsystem": "nvmf", "config": [
    {{"method": "nvmf_create_transport", "params": {{"trtype": "TCP"}}}},
    {{"method": "nvmf_create_subsystem", "params": {{"nqn": "{NQN}", "allow_any_host": true}}}},
    {{"method": "nvmf_subsystem_add_ns", "params": {{"nqn": "{NQN}", "namespace": {{"bdev_name": "Memory"}}}}}},
    {},
    {}]}}]}}
"#,
        listener(NQN),
        listener(DISCOVERY_NQN)
    )
}
