//! From TOML to a [`Config`], finding every mistake on the way.

mod split;
mod volumes;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ob_nvme::auth::Secret;
use ob_wire_nvme::text::Nqn;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::{
    ByteSize, Config, Durability, FilesConfig, FilesDevice, KvConfig, LINK_MODELS, LinkConfig, LinkKind,
    LogConfig, LogLevel, Mistake, NamespaceDevice, Network, NvmeConfig, Password, Place, Placement,
    ProgramsConfig, ReactorConfig, SegmentSize, StatusConfig, SubsystemConfig, TimeSpan, files, nvme,
    together,
};
use crate::spelling::nearest;

const TOP: &str = "";

/// Objects that a tenant can be allowed.
const OBJECTS_MAX: usize = 1024;

// Every section with its keys, in the order in which a message lists them.
const SECTIONS: &[(&str, &[&str])] = &[
    (
        TOP,
        &[
            "data",
            "link",
            "reactor",
            "files",
            "nvme",
            "kv",
            "volumes",
            "chunkserver",
            "split",
            "programs",
            "status",
            "log",
        ],
    ),
    (
        "link",
        &[
            "kind",
            "socket",
            "model",
            "listen",
            "card",
            "dead_after",
            "allow_users",
            "allow_addresses",
            "memory",
            "memory_per_host",
        ],
    ),
    ("reactor", &["spin"]),
    ("files", &["device", "size", "segment"]),
    (
        "nvme",
        &[
            "listen",
            "discovery",
            "nqn",
            "device",
            "size",
            "hosts",
            "key",
            "controller_key",
            "folder",
            "threads",
            "functions",
            "subsystem",
        ],
    ),
    (
        nvme::SECTION,
        &["nqn", "listen", "thread", "device", "size", "hosts", "key", "controller_key", "folder"],
    ),
    (
        "kv",
        &[
            "enabled",
            "listen",
            "placement",
            "durability",
            "memory",
            "table",
            "part",
            "offload_clients",
            "offload_excluded_ports",
            "password",
        ],
    ),
    ("volumes", volumes::VOLUMES_KEYS),
    ("chunkserver", volumes::CHUNKSERVER_KEYS),
    ("split", split::SPLIT_KEYS),
    ("programs", &["objects", "instructions", "fuel", "share"]),
    ("status", &["listen"]),
    ("log", &["level"]),
];

const DEAD_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));
const SPIN: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(10));
const MEMORY: (u64, u64) = (1 << 20, 1 << 40);
const KV_MEMORY: (u64, u64) = (8 << 20, 1 << 40);
// A part holds at least a group with the largest value; within a part an offset has 32 bits.
const KV_PART: (u64, u64) = (1 << 20, 4 << 30);
const DEVICE_SIZE: (u64, u64) = (1 << 20, 1 << 50);
const THREADS_MAX: usize = 64;
const SEGMENT: (u64, u64) = (4 << 10, 1 << 30);

/// Reads a whole text: the configuration with the place of each value that the text sets, or all that is wrong.
pub(super) fn read(text: &str) -> Result<(Config, BTreeMap<String, Place>), Vec<Mistake>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // After a broken line the rest may be read wrongly: only what the parser itself says can be trusted.
        return Err(errors.iter().map(|error| syntax_mistake(text, error)).collect());
    }
    let mut reader = Reader { text, mistakes: Vec::new(), places: BTreeMap::new(), spans: BTreeMap::new() };
    let mut config = Config::default();
    reader.top(&mut config, document.get_ref());
    if config.files.device == FilesDevice::Memory && !reader.places.contains_key("files.size") {
        config.files.size = files::MEMORY_SIZE_DEFAULT;
    }
    let memory = NamespaceDevice::Device(FilesDevice::Memory);
    for subsystem in [&mut config.nvme.single].into_iter().chain(&mut config.nvme.subsystems) {
        let is_sized = reader.places.contains_key(&format!("{}.size", subsystem.section));
        if subsystem.device == memory && !is_sized {
            subsystem.size = files::MEMORY_SIZE_DEFAULT;
        }
    }
    if reader.mistakes.is_empty() {
        // A value that could not be read would be taken for its default here.
        reader.mistakes = together::check(&config, &reader.spans);
    }
    if reader.mistakes.is_empty() { Ok((config, reader.places)) } else { Err(reader.mistakes) }
}

fn syntax_mistake(text: &str, error: &toml::de::Error) -> Mistake {
    let message = error.message().lines().next().unwrap_or("not TOML").trim().to_owned();
    Mistake {
        span: error.span().unwrap_or(text.len()..text.len()),
        message: format!("this is not TOML: {message}"),
        hint: Some(
            "a line is `key = value`; text stands in quotes, and `[section]` alone on its line".to_owned(),
        ),
    }
}

/// What is wrong with one value. Without a span of its own it is the whole value.
struct Problem {
    span: Option<Range<usize>>,
    message: String,
    hint: Option<String>,
}

impl Problem {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { span: None, message: message.into(), hint: Some(hint.into()) }
    }
}

type Parsed<T> = Result<T, Problem>;
type SpannedKey<'text> = Spanned<DeString<'text>>;
type SpannedValue<'text> = Spanned<DeValue<'text>>;

struct Reader<'text> {
    text: &'text str,
    mistakes: Vec<Mistake>,
    places: BTreeMap<String, Place>,
    /// Where the values are that those places set.
    spans: together::Spans,
}

impl Reader<'_> {
    fn top(&mut self, config: &mut Config, table: &DeTable<'_>) {
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "data" => self.set(TOP, key, value, &mut config.data, path),
                "link" => self.section(key, value, &mut config.link, Self::link),
                "reactor" => self.section(key, value, &mut config.reactor, Self::reactor),
                "files" => self.section(key, value, &mut config.files, Self::files),
                "nvme" => {
                    self.section(key, value, &mut config.nvme, Self::nvme);
                    self.check_subsystems(&config.nvme, value);
                }
                "kv" => self.section(key, value, &mut config.kv, Self::kv),
                "volumes" => {
                    config.volumes.enabled = true;
                    self.section(key, value, &mut config.volumes, Self::volumes);
                }
                "chunkserver" => self.section(key, value, &mut config.chunkserver, Self::chunkserver),
                "split" => {
                    config.split.enabled = true;
                    // It is set by being there.
                    self.spans.insert("split.enabled".to_owned(), key.span());
                    self.section(key, value, &mut config.split, Self::split);
                }
                "programs" => self.section(key, value, &mut config.programs, Self::programs),
                "status" => self.section(key, value, &mut config.status, Self::status),
                "log" => self.section(key, value, &mut config.log, Self::log),
                _ => self.unknown(TOP, key),
            }
        }
    }

    fn reactor(&mut self, reactor: &mut ReactorConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        match key.get_ref().as_ref() {
            "spin" => self.set("reactor", key, value, &mut reactor.spin, |value| time_span(value, SPIN)),
            _ => self.unknown("reactor", key),
        }
    }

    fn files(&mut self, files: &mut FilesConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        let size = |value: &DeValue<'_>| byte_size(value, DEVICE_SIZE);
        match key.get_ref().as_ref() {
            "device" => {
                self.set("files", key, value, &mut files.device, |value| {
                    device(value, files::DEVICE_DEFAULT)
                });
            }
            "size" => self.set("files", key, value, &mut files.size, size),
            "segment" => self.set("files", key, value, &mut files.segment, segment),
            _ => self.unknown("files", key),
        }
    }

    fn nvme(&mut self, nvme: &mut NvmeConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        match key.get_ref().as_ref() {
            "listen" => self.set("nvme", key, value, &mut nvme.listen, address),
            "discovery" => self.set("nvme", key, value, &mut nvme.discovery, address),
            "threads" => self.set("nvme", key, value, &mut nvme.threads, |value| count(value, THREADS_MAX)),
            "functions" => self.set("nvme", key, value, &mut nvme.functions, truth),
            "subsystem" => self.subsystems(&mut nvme.subsystems, value),
            name if nvme::ONE_SUBSYSTEM.contains(&name) => self.subsystem(&mut nvme.single, key, value),
            _ => self.unknown("nvme", key),
        }
    }

    fn subsystems(&mut self, subsystems: &mut Vec<SubsystemConfig>, value: &SpannedValue<'_>) {
        let DeValue::Array(array) = value.get_ref() else {
            let message = "there can be several subsystems";
            let hint = "write `[[nvme.subsystem]]`, with two brackets, and the subsystem's keys below";
            return self.report(value.span(), Problem::new(message, hint));
        };
        for element in array.iter() {
            let mut subsystem = SubsystemConfig::numbered(subsystems.len() + 1);
            let DeValue::Table(table) = element.get_ref() else {
                let problem = Problem::new("a subsystem is a section", "write `[[nvme.subsystem]]`");
                self.report(element.span(), problem);
                continue;
            };
            let before = self.mistakes.len();
            for (key, value) in table {
                self.subsystem(&mut subsystem, key, value);
            }
            for (key, example) in [("nqn", "nqn.2026-11.io.outboard:two"), ("device", "card/two.img")] {
                let is_set = self.places.contains_key(&format!("{}.{key}", subsystem.section));
                if !is_set && self.mistakes.len() == before {
                    let message = format!("this subsystem has no `{key}`");
                    self.report(
                        element.span(),
                        Problem::new(message, format!("such as {key} = \"{example}\"")),
                    );
                }
            }
            self.check_unique(subsystems, &subsystem, element);
            subsystems.push(subsystem);
        }
    }

    fn subsystem(&mut self, subsystem: &mut SubsystemConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        let section = subsystem.section.clone();
        let size = |value: &DeValue<'_>| byte_size(value, DEVICE_SIZE);
        let secret = |value: &DeValue<'_>| secret(value).map(Some);
        match key.get_ref().as_ref() {
            "nqn" => self.set(&section, key, value, &mut subsystem.nqn, nqn),
            "listen" => {
                self.set(&section, key, value, &mut subsystem.listen, |value| address(value).map(Some));
            }
            "thread" => self.set(&section, key, value, &mut subsystem.thread, |value| {
                count(value, THREADS_MAX).map(Some)
            }),
            "device" => self.set(&section, key, value, &mut subsystem.device, namespace_device),
            "size" => self.set(&section, key, value, &mut subsystem.size, size),
            "hosts" => self.set(&section, key, value, &mut subsystem.hosts, |value| list(value, nqn)),
            "key" => self.set(&section, key, value, &mut subsystem.key, secret),
            "controller_key" => self.set(&section, key, value, &mut subsystem.controller_key, secret),
            "folder" => self.set(&section, key, value, &mut subsystem.folder, |value| {
                text(value, "/pushdown").map(str::to_owned)
            }),
            _ => self.unknown(nvme::SECTION, key),
        }
    }

    /// Two subsystems have neither a name nor a device in common.
    fn check_unique(
        &mut self,
        others: &[SubsystemConfig],
        subsystem: &SubsystemConfig,
        element: &SpannedValue<'_>,
    ) {
        let is_same_device = |other: &SubsystemConfig| {
            let is_told = match &other.device {
                NamespaceDevice::Device(FilesDevice::Path(path)) => !path.as_os_str().is_empty(),
                NamespaceDevice::Device(FilesDevice::Memory) => false,
                NamespaceDevice::CardFile(_) => true,
            };
            is_told && other.device == subsystem.device
        };
        let clash = if others.iter().any(|other| !other.nqn.is_discovery() && other.nqn == subsystem.nqn) {
            ("nqn", "hosts would take them for one")
        } else if others.iter().any(is_same_device) {
            ("device", "what one writes would destroy what the other wrote")
        } else {
            return;
        };
        let span = key_span(element, clash.0);
        let message = format!("another subsystem has the same `{}`", clash.0);
        self.report(span, Problem::new(message, format!("give each its own: {}", clash.1)));
    }

    /// What describes one subsystem says nothing where there are sections for them.
    fn check_subsystems(&mut self, nvme: &NvmeConfig, value: &SpannedValue<'_>) {
        let DeValue::Table(table) = value.get_ref() else { return };
        if nvme.subsystems.is_empty() {
            return;
        }
        let elements = table.iter().filter_map(|(key, value)| match value.get_ref() {
            DeValue::Array(array) if key.get_ref() == "subsystem" => Some(array.iter()),
            _ => None,
        });
        for (element, subsystem) in elements.flatten().zip(&nvme.subsystems) {
            if subsystem.thread.is_some_and(|thread| thread > nvme.threads) {
                let message = format!("there is no thread {}", subsystem.thread.unwrap_or_default());
                let hint = format!("`[nvme] threads` is {}: make it larger", nvme.threads);
                self.report(key_span(element, "thread"), Problem::new(message, hint));
            }
        }
        for (key, _) in table {
            let name = key.get_ref().as_ref();
            if nvme::ONE_SUBSYSTEM.contains(&name) {
                let message =
                    format!("`{name}` in [nvme] is for a single subsystem, and here they have sections");
                let hint = "move the line into the `[[nvme.subsystem]]` that it is for";
                self.report(key.span(), Problem::new(message, hint));
            }
        }
    }

    fn kv(&mut self, kv: &mut KvConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        let placement = |value: &DeValue<'_>| named(value, "placement", Placement::NAMES);
        let durability = |value: &DeValue<'_>| named(value, "durability", Durability::NAMES);
        match key.get_ref().as_ref() {
            "enabled" => self.set("kv", key, value, &mut kv.enabled, truth),
            "listen" => self.set("kv", key, value, &mut kv.listen, address),
            "placement" => self.set("kv", key, value, &mut kv.placement, placement),
            "durability" => self.set("kv", key, value, &mut kv.durability, durability),
            "memory" => self.set("kv", key, value, &mut kv.memory, |value| byte_size(value, KV_MEMORY)),
            "table" => self.set("kv", key, value, &mut kv.table, |value| byte_size(value, MEMORY)),
            "part" => self.set("kv", key, value, &mut kv.part, part),
            "offload_clients" => {
                self.set("kv", key, value, &mut kv.offload_clients, |value| list(value, network));
            }
            "offload_excluded_ports" => {
                self.set("kv", key, value, &mut kv.offload_excluded_ports, |value| list(value, port));
            }
            "password" => self.set("kv", key, value, &mut kv.password, |value| password(value).map(Some)),
            _ => self.unknown("kv", key),
        }
    }

    fn programs(&mut self, programs: &mut ProgramsConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        let number = |value: &DeValue<'_>, most: u32| {
            count(value, most as usize).map(|number| u32::try_from(number).unwrap_or(most))
        };
        match key.get_ref().as_ref() {
            "objects" => {
                self.set("programs", key, value, &mut programs.objects, |value| count(value, OBJECTS_MAX));
            }
            "instructions" => {
                let most = OBJECTS_MAX * ob_ebpf::isa::INSTRUCTIONS_MAX;
                self.set("programs", key, value, &mut programs.instructions, |value| count(value, most));
            }
            "fuel" => {
                let fuel = |value: &DeValue<'_>| number(value, ob_ebpf::hooks::CALL_FUEL_MAX);
                self.set("programs", key, value, &mut programs.fuel, fuel);
            }
            "share" => self.set("programs", key, value, &mut programs.share, |value| number(value, 100)),
            _ => self.unknown("programs", key),
        }
    }

    fn status(&mut self, status: &mut StatusConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        match key.get_ref().as_ref() {
            "listen" => self.set("status", key, value, &mut status.listen, address),
            _ => self.unknown("status", key),
        }
    }

    fn log(&mut self, log: &mut LogConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        match key.get_ref().as_ref() {
            "level" => {
                let level = |value: &DeValue<'_>| named(value, "log level", LogLevel::NAMES);
                self.set("log", key, value, &mut log.level, level);
            }
            _ => self.unknown("log", key),
        }
    }

    fn link(&mut self, link: &mut LinkConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        let kind = |value: &DeValue<'_>| named(value, "link kind", LinkKind::NAMES);
        let dead_after = |value: &DeValue<'_>| time_span(value, DEAD_AFTER);
        let users = |value: &DeValue<'_>| list(value, user);
        let networks = |value: &DeValue<'_>| list(value, network);
        let memory = |value: &DeValue<'_>| byte_size(value, MEMORY);
        match key.get_ref().as_ref() {
            "kind" => self.set("link", key, value, &mut link.kind, kind),
            "socket" => self.set("link", key, value, &mut link.socket, path),
            "model" => self.set("link", key, value, &mut link.model, model),
            "listen" => self.set("link", key, value, &mut link.listen, address),
            "card" => self.set("link", key, value, &mut link.card, reachable_address),
            "dead_after" => self.set("link", key, value, &mut link.dead_after, dead_after),
            "allow_users" => self.set("link", key, value, &mut link.allow_users, users),
            "allow_addresses" => self.set("link", key, value, &mut link.allow_addresses, networks),
            "memory" => self.set("link", key, value, &mut link.memory, memory),
            "memory_per_host" => self.set("link", key, value, &mut link.memory_per_host, memory),
            _ => self.unknown("link", key),
        }
    }

    fn section<Section>(
        &mut self,
        name: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
        section: &mut Section,
        mut entry: impl FnMut(&mut Self, &mut Section, &SpannedKey<'_>, &SpannedValue<'_>),
    ) {
        let DeValue::Table(table) = value.get_ref() else {
            let name = name.get_ref();
            let message = format!("`{name}` is a section, not a value");
            let hint = format!("write `[{name}]` on a line of its own, and its keys below");
            self.report(value.span(), Problem::new(message, hint));
            return;
        };
        for (key, value) in table {
            entry(self, section, key, value);
        }
    }

    fn set<T>(
        &mut self,
        section: &str,
        key: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
        target: &mut T,
        parse: impl FnOnce(&DeValue<'_>) -> Parsed<T>,
    ) {
        match parse(value.get_ref()) {
            Ok(parsed) => {
                *target = parsed;
                let name = if section.is_empty() {
                    key.get_ref().to_string()
                } else {
                    format!("{section}.{}", key.get_ref())
                };
                self.spans.insert(name.clone(), value.span());
                self.places.insert(name, Place::of(self.text, key.span().start));
            }
            Err(problem) => {
                let problem =
                    Problem { message: format!("`{}`: {}", key.get_ref(), problem.message), ..problem };
                self.report(value.span(), problem);
            }
        }
    }

    fn unknown(&mut self, section: &str, key: &SpannedKey<'_>) {
        let typed = key.get_ref().as_ref();
        let keys = |wanted: &str| {
            SECTIONS.iter().find(|(name, _)| *name == wanted).map_or(&[][..], |(_, keys)| *keys)
        };
        let elsewhere: Vec<String> = SECTIONS
            .iter()
            .filter(|(name, keys)| !name.is_empty() && *name != nvme::SECTION && keys.contains(&typed))
            .map(|(name, _)| format!("[{name}]"))
            .collect();
        let hint = match (nearest(typed, keys(section).iter().copied()), elsewhere.as_slice()) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, []) => format!("the keys here are {}", keys(section).join(", ")),
            (None, sections) => format!("`{typed}` is a key of {}", sections.join(" and of ")),
        };
        let place = match section {
            TOP => "at the top level".to_owned(),
            nvme::SECTION => format!("in [[{section}]]"),
            _ => format!("in [{section}]"),
        };
        self.report(key.span(), Problem::new(format!("unknown key `{typed}` {place}"), hint));
    }

    fn report(&mut self, span: Range<usize>, problem: Problem) {
        let Problem { span: own, message, hint } = problem;
        self.mistakes.push(Mistake { span: own.unwrap_or(span), message, hint });
    }
}

fn text<'value>(value: &'value DeValue<'_>, example: &str) -> Parsed<&'value str> {
    value.as_str().ok_or_else(|| {
        let message = format!("expected text, found {}", with_article(value.type_str()));
        Problem::new(message, format!("write it in quotes, such as \"{example}\""))
    })
}

/// Where a key's value is in a table.
fn key_span(table: &SpannedValue<'_>, name: &str) -> Range<usize> {
    let found = match table.get_ref() {
        DeValue::Table(table) => table.iter().find(|(key, _)| key.get_ref().as_ref() == name),
        _ => None,
    };
    found.map_or(table.span(), |(_, value)| value.span())
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn path(value: &DeValue<'_>) -> Parsed<PathBuf> {
    match text(value, "outboard-data")? {
        "" => Err(Problem::new("the path is empty", "leave the line out to use the default")),
        path => Ok(PathBuf::from(path)),
    }
}

fn device(value: &DeValue<'_>, example: &str) -> Parsed<FilesDevice> {
    match text(value, example)? {
        "" => Err(Problem::new("the path is empty", "leave the line out to use the default")),
        files::MEMORY => Ok(FilesDevice::Memory),
        other if other.eq_ignore_ascii_case(files::MEMORY) => Err(Problem::new(
            format!("\"{other}\" could be memory or a file"),
            format!("write \"{}\" for memory, or \"./{other}\" for a file", files::MEMORY),
        )),
        path if path.starts_with(nvme::CARD_FILE) => Err(Problem::new(
            format!("\"{path}\" would be a file of the card's own file system, and that lies here"),
            format!("such as \"{example}\"; write \"./{path}\" for a file of this machine"),
        )),
        path => Ok(FilesDevice::Path(PathBuf::from(path))),
    }
}

fn namespace_device(value: &DeValue<'_>) -> Parsed<NamespaceDevice> {
    let written = text(value, nvme::DEVICE_DEFAULT)?;
    if !written.starts_with(nvme::CARD_FILE) {
        return device(value, nvme::DEVICE_DEFAULT).map(NamespaceDevice::Device);
    }
    NamespaceDevice::parse(Path::new(written)).ok_or_else(|| {
        let hint = "give its whole path there, such as \"file:/volumes/a\"";
        Problem::new(format!("\"{written}\" names no file of the card's own file system"), hint)
    })
}

fn segment(value: &DeValue<'_>) -> Parsed<SegmentSize> {
    if text(value, files::SEGMENT_AUTO)? == files::SEGMENT_AUTO {
        return Ok(SegmentSize::Auto);
    }
    let size = byte_size(value, SEGMENT)?;
    if !size.0.is_power_of_two() {
        let message = format!("{size} is not a power of two");
        return Err(Problem::new(message, "such as \"64KiB\" or \"1MiB\"; \"auto\" suits the device's size"));
    }
    Ok(SegmentSize::Bytes(size))
}

fn truth(value: &DeValue<'_>) -> Parsed<bool> {
    value.as_bool().ok_or_else(|| {
        let message = format!("expected true or false, found {}", with_article(value.type_str()));
        Problem::new(message, "write `true` or `false`, without quotes")
    })
}

fn part(value: &DeValue<'_>) -> Parsed<ByteSize> {
    let size = byte_size(value, KV_PART)?;
    if !size.0.is_power_of_two() {
        return Err(Problem::new(format!("{size} is not a power of two"), "such as \"64MiB\" or \"1GiB\""));
    }
    Ok(size)
}

fn password(value: &DeValue<'_>) -> Parsed<Password> {
    // The text itself stays out of messages: it is a secret.
    match value.as_str() {
        Some("") => Err(Problem::new("the password is empty", "leave the line out for none")),
        Some(written) => Ok(Password(written.to_owned())),
        None => Err(Problem::new("expected a password", "write it in quotes")),
    }
}

fn named<T: Clone>(value: &DeValue<'_>, what: &str, names: &[(&str, T)]) -> Parsed<T> {
    let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let written = text(value, known.first().copied().unwrap_or_default())?;
    if let Some((_, found)) = names.iter().find(|(name, _)| *name == written) {
        return Ok(found.clone());
    }
    let list = known.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let hint = match nearest(written, known.iter().copied()) {
        Some(name) => format!("did you mean \"{name}\"? It can be {list}"),
        None => format!("it can be {list}"),
    };
    Err(Problem::new(format!("there is no {what} \"{written}\""), hint))
}

fn model(value: &DeValue<'_>) -> Parsed<String> {
    let models: Vec<_> = LINK_MODELS.iter().map(|(name, _)| (*name, (*name).to_owned())).collect();
    named(value, "link model", &models)
}

fn address(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    let written = text(value, "127.0.0.1:9160")?;
    written.parse().map_err(|_| {
        Problem::new(
            format!("\"{written}\" is not an address with a port"),
            "write IP:PORT, such as \"127.0.0.1:9160\" or \"[::1]:9160\"; \"0.0.0.0:9160\" is every interface",
        )
    })
}

fn reachable_address(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    match address(value)? {
        address if address.port() == 0 => {
            Err(Problem::new("nothing can be reached at port 0", "give the port on which the card listens"))
        }
        address => Ok(address),
    }
}

fn time_span(value: &DeValue<'_>, (least, most): (Duration, Duration)) -> Parsed<TimeSpan> {
    if value.as_integer().is_some_and(|integer| integer.as_str() == "0") && least.is_zero() {
        return Ok(TimeSpan(Duration::ZERO));
    }
    let written = text(value, "10s")?;
    let span = TimeSpan::parse(written).map_err(|error| {
        Problem::new(format!("\"{written}\" is not a duration: {error}"), "such as \"10s\" or \"50us\"")
    })?;
    if span.0 < least || span.0 > most {
        return Err(out_of_range(written, TimeSpan(least), TimeSpan(most)));
    }
    Ok(span)
}

fn byte_size(value: &DeValue<'_>, (least, most): (u64, u64)) -> Parsed<ByteSize> {
    let written = text(value, "64MiB")?;
    let size = ByteSize::parse(written).map_err(|error| {
        Problem::new(format!("\"{written}\" is not a size: {error}"), "such as \"64MiB\"")
    })?;
    if size.0 < least || size.0 > most {
        return Err(out_of_range(written, ByteSize(least), ByteSize(most)));
    }
    Ok(size)
}

fn out_of_range(written: &str, least: impl std::fmt::Display, most: impl std::fmt::Display) -> Problem {
    Problem::new(format!("{written} is out of range"), format!("it can be from {least} to {most}"))
}

fn list<T>(value: &DeValue<'_>, parse: impl Fn(&DeValue<'_>) -> Parsed<T>) -> Parsed<Vec<T>> {
    let Some(array) = value.as_array() else {
        let message = format!("expected a list, found {}", with_article(value.type_str()));
        return Err(Problem::new(message, "write it in brackets, such as [] or [1, 2]"));
    };
    let parse_one = |element: &SpannedValue<'_>| {
        parse(element.get_ref())
            .map_err(|problem| Problem { span: Some(problem.span.unwrap_or(element.span())), ..problem })
    };
    array.iter().map(parse_one).collect()
}

fn count(value: &DeValue<'_>, most: usize) -> Parsed<usize> {
    let number =
        value.as_integer().and_then(|integer| usize::from_str_radix(integer.as_str(), integer.radix()).ok());
    number
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| Problem::new("expected a number", format!("it can be from 1 to {most}")))
}

fn port(value: &DeValue<'_>) -> Parsed<u16> {
    let most = usize::from(u16::MAX);
    let number = count(value, most)?;
    u16::try_from(number).map_err(|_| Problem::new("expected a port", format!("it can be from 1 to {most}")))
}

fn user(value: &DeValue<'_>) -> Parsed<u32> {
    let number =
        value.as_integer().and_then(|integer| u32::from_str_radix(integer.as_str(), integer.radix()).ok());
    number.ok_or_else(|| {
        Problem::new(
            "expected a user's number",
            format!("`id -u NAME` tells it; it can be from 0 to {}", u32::MAX),
        )
    })
}

fn nqn(value: &DeValue<'_>) -> Parsed<Nqn> {
    let example = "nqn.2014-08.org.nvmexpress:uuid:…";
    let written = text(value, example)?;
    let form = written.starts_with("nqn.") && written.contains(':');
    match Nqn::new(written) {
        Ok(nqn) if form && !nqn.is_discovery() => Ok(nqn),
        _ => Err(Problem::new(
            format!("\"{written}\" is not the NVMe name of a host or subsystem"),
            format!("such as \"{example}\"; a host's own is in /etc/nvme/hostnqn"),
        )),
    }
}

fn secret(value: &DeValue<'_>) -> Parsed<Secret> {
    let written = text(value, "DHHC-1:01:…:")?;
    // The text itself stays out of the message: it is a secret.
    written.parse().map_err(|error| {
        Problem::new(format!("this is not a key: {error}"), "`nvme gen-dhchap-key` makes one: DHHC-1:01:…:")
    })
}

fn network(value: &DeValue<'_>) -> Parsed<Network> {
    let written = text(value, "10.0.0.7")?;
    Network::parse(written).ok_or_else(|| {
        Problem::new(
            format!("\"{written}\" is neither an address nor a range"),
            "write an IP address, such as \"10.0.0.7\", or a prefix, such as \"10.0.0.0/24\"",
        )
    })
}
