//! Golden texts of mistakes, and what goes in comes out.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("outboard.toml"), text)
}

/// What a person reads about a text.
fn explained(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn by_default_everything_listens_on_loopback_where_people_look_for_it() {
    let Config { link, nvme, kv, status, .. } = Config::default();
    let listening = [nvme.listen, nvme.discovery, kv.listen, status.listen, link.listen];
    assert_eq!(listening.map(|address| address.port()), [4420, 8009, 6379, 9160, 4421]);
    assert!(listening.iter().all(|address| address.ip().is_loopback()), "{listening:?}");
    assert!(link.allow_addresses.is_empty() && link.allow_users.is_empty());
}

#[test]
fn an_empty_file_means_the_defaults() {
    let config = parse("").unwrap();
    assert_eq!(config.to_toml().unwrap(), Config::default().to_toml().unwrap());
    assert_eq!(config.card().link.socket, Path::new("outboard-data/link.sock"));
    assert_eq!(config.card().directory, Path::new("outboard-data/card"));
    assert_eq!(config.host().directory, Path::new("outboard-data/host"));
    assert_eq!(config.card().files.device, FilesDevice::Path("outboard-data/card/files.img".into()));
}

#[test]
fn memory_is_no_path_and_has_a_size_of_its_own() {
    let config = parse("[files]\ndevice = \"memory\"").unwrap();
    assert_eq!(config.card().files.device, FilesDevice::Memory);
    assert_eq!(config.files.size, ByteSize(256 << 20));
    let config = parse("[files]\nsize = \"1GiB\"\ndevice = \"memory\"").unwrap();
    assert_eq!(config.files.size, ByteSize(1 << 30));
    let config = parse("[files]\ndevice = \"./memory\"").unwrap();
    assert_eq!(config.card().files.device, FilesDevice::Path("outboard-data/./memory".into()));
    let said = explained("[files]\ndevice = \"Memory\"");
    assert!(said.contains("hint: write \"memory\" for memory, or \"./Memory\" for a file"), "{said}");
}

#[test]
fn a_file_of_the_card_is_no_path_and_only_a_namespace_lies_on_one() {
    let config = parse("[nvme]\ndevice = \"file:/volumes/a\"").unwrap();
    let device = NamespaceDevice::CardFile("volumes/a".to_owned());
    assert_eq!(
        (&config.card().nvme.single.device, device.to_string()),
        (&device, "file:/volumes/a".to_owned())
    );
    assert_eq!(NamespaceDevice::parse(Path::new("file:/volumes/a")), Some(device));
    let shown = config.to_toml().unwrap();
    assert_eq!(parse(&shown).unwrap().to_toml().unwrap(), shown);
    for wrong in ["file:", "file:/", "file:volumes/a"] {
        let said = explained(&format!("[nvme]\ndevice = \"{wrong}\""));
        assert!(said.contains("such as \"file:/volumes/a\""), "{said}");
        assert_eq!(NamespaceDevice::parse(Path::new(wrong)), None);
    }
    let said = explained("[files]\ndevice = \"file:/volumes/a\"");
    assert!(said.contains("write \"./file:/volumes/a\" for a file of this machine"), "{said}");
    let config = parse("[nvme]\ndevice = \"./file:x\"").unwrap();
    let path = FilesDevice::Path("outboard-data/./file:x".into());
    assert_eq!(config.card().nvme.single.device, NamespaceDevice::Device(path));
}

#[test]
fn a_segment_that_cannot_be_is_explained() {
    assert_eq!(
        explained("[files]\nsegment = \"96KiB\""),
        "\
`segment`: 96KiB is not a power of two
 --> outboard.toml:2:11
  |
2 | segment = \"96KiB\"
  |           ^^^^^^^
  = hint: such as \"64KiB\" or \"1MiB\"; \"auto\" suits the device's size"
    );
    let text = explained("[files]\nsegment = \"2KiB\"");
    assert!(text.contains("it can be from 4KiB to 1GiB"), "{text}");
}

#[test]
fn every_key_can_be_set_and_shown_and_read_again() {
    let text = r#"
data = "/srv/outboard"
[link]
kind = "tcp"
socket = "/run/link.sock"
model = "pcie4"
listen = "10.0.0.1:4421"
card = "[fd00::1]:4421"
dead_after = "1500ms"
allow_users = [0, 0x3e8]
allow_addresses = ["10.0.0.0/24", "fd00::2"]
memory = "3GiB"
[reactor]
spin = 0
[files]
device = "/dev/nvme0n1"
size = "1TiB"
segment = "2MiB"
[status]
listen = "127.0.0.1:0"
[log]
level = "trace"
"#;
    let config = parse(text).unwrap();
    assert_eq!(config.link.kind, LinkKind::Tcp);
    assert_eq!(config.link.dead_after, TimeSpan(Duration::from_millis(1500)));
    assert_eq!(config.link.allow_users, [0, 1000]);
    assert_eq!(config.link.card, "[fd00::1]:4421".parse::<SocketAddr>().unwrap());
    assert_eq!(config.reactor.spin, TimeSpan(Duration::ZERO));
    assert_eq!(config.card().link.socket, Path::new("/run/link.sock"));
    assert_eq!(config.card().files.device, FilesDevice::Path("/dev/nvme0n1".into()));
    assert_eq!(config.files.segment, SegmentSize::Bytes(ByteSize(2 << 20)));
    let shown = config.to_toml().unwrap();
    assert_eq!(parse(&shown).unwrap().to_toml().unwrap(), shown);
}

const SUBSYSTEMS: &str = r#"[nvme]
listen = "127.0.0.1:4500"

[[nvme.subsystem]]
nqn = "nqn.2026-01.example:one"
device = "memory"

[[nvme.subsystem]]
nqn = "nqn.2026-01.example:two"
device = "two.img"
size = "1GiB"
listen = "127.0.0.1:4501"
hosts = ["nqn.2026-01.example:host"]
"#;

#[test]
fn several_subsystems_have_sections_of_their_own() {
    let config = parse(SUBSYSTEMS).unwrap();
    let [one, two] = &config.card().nvme.all_subsystems()[..] else { panic!("two of them") };
    assert_eq!((one.nqn.as_str(), one.listen, one.size.0), ("nqn.2026-01.example:one", None, 1 << 28));
    assert_eq!(two.device, NamespaceDevice::Device(FilesDevice::Path("outboard-data/two.img".into())));
    assert_eq!((two.size.0, two.listen.unwrap().port(), two.hosts.len()), (1 << 30, 4501, 1));
    let line = config.source.line_to_change(&two.section, "listen", "\"127.0.0.1:1\"");
    assert_eq!(
        line,
        "change `[[nvme.subsystem]] (number 2) listen` at outboard.toml:12: listen = \"127.0.0.1:4501\""
    );
    let shown = config.to_toml().unwrap();
    assert_eq!(parse(&shown).unwrap().to_toml().unwrap(), shown);
    assert_eq!(Config::default().nvme.all_subsystems().len(), 1);
}

#[test]
fn subsystems_that_cannot_be_are_explained() {
    assert_eq!(
        explained(&SUBSYSTEMS.replace("[nvme]", "[nvme]\nsize = \"1GiB\"")),
        "\
`size` in [nvme] is for a single subsystem, and here they have sections
 --> outboard.toml:2:1
  |
2 | size = \"1GiB\"
  | ^^^^
  = hint: move the line into the `[[nvme.subsystem]]` that it is for"
    );
    let same_name = explained(&SUBSYSTEMS.replace("example:two", "example:one"));
    assert!(same_name.contains("outboard.toml:9:7") && same_name.contains("same `nqn`"), "{same_name}");
    let same_device = explained(&SUBSYSTEMS.replace("\"memory\"", "\"two.img\""));
    assert!(
        same_device.contains("outboard.toml:10:10") && same_device.contains("same `device`"),
        "{same_device}"
    );
    let nameless = explained("[[nvme.subsystem]]\ndevice = \"memory\"");
    assert!(nameless.contains("no `nqn`"), "{nameless}");
    let nowhere = explained("[[nvme.subsystem]]\nnqn = \"nqn.2026-01.example:one\"");
    assert!(nowhere.contains("no `device`"), "{nowhere}");
    let single = explained("[nvme.subsystem]\ndevice = \"memory\"");
    assert!(single.contains("with two brackets"), "{single}");
    let thread = explained(&SUBSYSTEMS.replace("size = \"1GiB\"", "thread = 2"));
    assert!(thread.contains("outboard.toml:11:10") && thread.contains("no thread 2"), "{thread}");
    assert!(parse(&SUBSYSTEMS.replace("[nvme]", "[nvme]\nthreads = 2")).is_ok());
    let unknown = explained("[[nvme.subsystem]]\ndiscovery = \"127.0.0.1:1\"");
    assert!(unknown.contains("unknown key `discovery` in [[nvme.subsystem]]"), "{unknown}");
}

const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

/// What a card would refuse when it starts is told before.
#[test]
fn values_that_contradict_each_other_are_explained() {
    let one = |keys: &str| format!("[nvme]\n{keys}\n");
    let host = "hosts = [\"nqn.2026-01.example:host\"]";
    assert_eq!(
        explained(&one(&format!("key = \"{SECRET}\""))),
        format!(
            "\
`key` belongs to hosts, and none is listed
 --> outboard.toml:2:7
  |
2 | key = \"{SECRET}\"
  |       {}
  = hint: name them in the same section: hosts = [\"nqn.…\"]",
            "^".repeat(SECRET.len() + 2)
        )
    );
    let alone = explained(&one(&format!("{host}\ncontroller_key = \"{SECRET}\"")));
    assert!(alone.contains("outboard.toml:3:18") && alone.contains("no `key` for them"), "{alone}");
    assert!(alone.contains("= hint: set `key`"), "{alone}");
    assert!(parse(&one(&format!("{host}\nkey = \"{SECRET}\"\ncontroller_key = \"{SECRET}\""))).is_ok());
    let second = explained(&format!("{SUBSYSTEMS}controller_key = \"{SECRET}\"\n"));
    assert!(second.contains("outboard.toml:14:18"), "{second}");

    let threads = SUBSYSTEMS.replace("[nvme]", "[nvme]\nthreads = 2");
    let threads = threads.replace("\"memory\"", "\"memory\"\nthread = 1");
    let threads = threads.replace("size = \"1GiB\"", "thread = 2");
    assert!(parse(&threads).is_ok(), "they have addresses of their own");
    let shared = explained(&threads.replace("4501", "4500"));
    assert!(shared.contains("outboard.toml:13:10") && shared.contains("these name two"), "{shared}");
    assert!(shared.contains("= hint: name the same thread"), "{shared}");
    let files = explained(&threads.replace("\"two.img\"", "\"file:/two\""));
    assert!(files.contains("outboard.toml:12:10") && files.contains("thread 2 would serve this"), "{files}");
}

#[test]
fn threads_that_would_serve_nothing_are_not_counted() {
    let in_use = |text: &str| parse(text).unwrap().nvme.threads_in_use();
    assert_eq!(in_use(""), 1);
    assert_eq!(in_use("[nvme]\nthreads = 8"), 1, "there is one subsystem");
    let four = SUBSYSTEMS.replace("[nvme]", "[nvme]\nthreads = 4");
    assert_eq!((in_use(SUBSYSTEMS), in_use(&four)), (1, 2), "there are two, with addresses of their own");
    assert_eq!(in_use(&four.replace("4501", "4500")), 1, "they share an address, and so a thread");
    let second =
        four.replace("size = \"1GiB\"", "thread = 4").replace("\"memory\"", "\"memory\"\nthread = 4");
    assert_eq!(in_use(&second), 2, "the card's own has other things to do");
}

#[test]
fn two_that_would_listen_in_one_place_are_explained() {
    let told = |text: &str, place: &str, other: &str| {
        let said = explained(text);
        assert!(said.contains(place) && said.contains(other) && said.contains("= hint: give one"), "{said}");
    };
    told("[nvme]\nlisten = \"127.0.0.1:8009\"", "outboard.toml:2:10", "`discovery` of [nvme]");
    told(
        "[nvme]\ndiscovery = \"0.0.0.0:4420\"",
        "outboard.toml:2:13",
        "`listen` of [nvme] is 127.0.0.1:4420",
    );
    told("[status]\nlisten = \"[::]:4420\"", "outboard.toml:2:10", "`listen` of [nvme]");
    let tcp = "[link]\nkind = \"tcp\"\nlisten = \"127.0.0.1:4420\"";
    told(tcp, "outboard.toml:3:10", "`listen` of [nvme]");
    assert!(parse(&tcp.replace("tcp", "shm")).is_ok(), "nobody listens there");
    let two = SUBSYSTEMS.replace("127.0.0.1:4501", "0.0.0.0:4500");
    told(&two, "outboard.toml:12:10", "`listen` of [nvme] is 127.0.0.1:4500");
    let three = "[[nvme.subsystem]]\nnqn = \"nqn.2026-01.example:3\"\ndevice = \"three\"\n";
    let three = format!("{SUBSYSTEMS}{three}listen = \"[::]:4501\"");
    told(&three, "outboard.toml:17:10", "`listen` of [[nvme.subsystem]] (number 2)");
    assert!(parse(&three.replace("[::]:4501", "127.0.0.1:4501")).is_ok(), "those share it");
    assert!(parse(&three.replace("[::]:4501", "127.0.0.2:4501")).is_ok());
    assert!(parse(&SUBSYSTEMS.replace("4500", "0").replace("4501", "0")).is_ok(), "any that is free");
}

#[test]
fn a_misspelled_key_is_guessed() {
    assert_eq!(
        explained("data = \"d\"\n\n[link]\nsokcet = \"l\"\n"),
        "\
unknown key `sokcet` in [link]
 --> outboard.toml:4:1
  |
4 | sokcet = \"l\"
  | ^^^^^^
  = hint: did you mean `socket`?"
    );
}

#[test]
fn an_unknown_key_is_answered_with_the_known_ones() {
    assert_eq!(
        explained("[reactor]\ncolour = 1"),
        "\
unknown key `colour` in [reactor]
 --> outboard.toml:2:1
  |
2 | colour = 1
  | ^^^^^^
  = hint: the keys here are spin"
    );
}

#[test]
fn a_key_in_the_wrong_section_is_sent_to_the_right_one() {
    assert_eq!(
        explained("listen = \"127.0.0.1:1\""),
        "\
unknown key `listen` at the top level
 --> outboard.toml:1:1
  |
1 | listen = \"127.0.0.1:1\"
  | ^^^^^^
  = hint: `listen` is a key of [link] and of [nvme] and of [kv] and of [chunkserver] and of [status]"
    );
}

#[test]
fn an_unknown_link_kind_lists_the_kinds() {
    assert_eq!(
        explained("[link]\n\tkind = \"pigeon\"  # slow"),
        "\
`kind`: there is no link kind \"pigeon\"
 --> outboard.toml:2:9
  |
2 | \tkind = \"pigeon\"  # slow
  | \t       ^^^^^^^^
  = hint: it can be \"shm\", \"model\", \"tcp\""
    );
}

#[test]
fn a_value_out_of_range_is_answered_with_the_range() {
    assert_eq!(
        explained("[link]\ndead_after = \"1us\""),
        "\
`dead_after`: 1us is out of range
 --> outboard.toml:2:14
  |
2 | dead_after = \"1us\"
  |              ^^^^^
  = hint: it can be from 100ms to 10min"
    );
}

#[test]
fn sizes_and_durations_without_sense_are_explained() {
    assert_eq!(
        explained("[link]\nmemory = \"64Mb\""),
        "\
`memory`: \"64Mb\" is not a size: there is no unit `Mb`; the units are TiB, GiB, MiB, KiB, TB, GB, MB, kB, B
 --> outboard.toml:2:10
  |
2 | memory = \"64Mb\"
  |          ^^^^^^
  = hint: such as \"64MiB\""
    );
    assert_eq!(
        explained("[reactor]\nspin = 50"),
        "\
`spin`: expected text, found an integer
 --> outboard.toml:2:8
  |
2 | spin = 50
  |        ^^
  = hint: write it in quotes, such as \"10s\""
    );
}

#[test]
fn an_element_of_a_list_is_marked_alone() {
    assert_eq!(
        explained("[link]\nallow_addresses = [\"10.0.0.1\", \"card.example\"]"),
        "\
`allow_addresses`: \"card.example\" is neither an address nor a range
 --> outboard.toml:2:32
  |
2 | allow_addresses = [\"10.0.0.1\", \"card.example\"]
  |                                ^^^^^^^^^^^^^^
  = hint: write an IP address, such as \"10.0.0.7\", or a prefix, such as \"10.0.0.0/24\""
    );
}

#[test]
fn broken_syntax_is_shown_where_it_breaks() {
    let text = explained("[link]\nkind = shm\n");
    assert!(text.starts_with("this is not TOML: "), "{text}");
    assert!(text.contains("\n --> outboard.toml:2:8\n"), "{text}");
    assert!(text.contains("\n2 | kind = shm\n"), "{text}");
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_text() {
    let text = explained("[status]\nlisten = \"nowhere\"\n[log]\nlevel = \"loud\"\n[lnk]\n");
    let places: Vec<_> = text.lines().filter(|line| line.contains("-->")).collect();
    assert_eq!(places, [" --> outboard.toml:2:10", " --> outboard.toml:4:9", " --> outboard.toml:5:2"]);
}

#[test]
fn sections_and_values_are_not_confused() {
    let text = explained("link = \"shm\"");
    assert!(text.contains("`link` is a section, not a value"), "{text}");
    let text = explained("[data]\n");
    assert!(text.contains("`data`: expected text, found a table"), "{text}");
}

#[test]
fn errors_that_show_later_know_their_line() {
    let config = parse("# a comment\n[status]\nlisten = \"127.0.0.1:1\"\n").unwrap();
    assert_eq!(
        config.source.line_to_change("status", "listen", "\"…\""),
        "change `[status] listen` at outboard.toml:3: listen = \"127.0.0.1:1\""
    );
    assert_eq!(
        config.source.line_to_change("link", "listen", "\"127.0.0.1:4422\""),
        "set `[link] listen` in outboard.toml, such as listen = \"127.0.0.1:4422\""
    );
    let text = Config::default().source.line_to_change("status", "listen", "\"127.0.0.1:9161\"");
    assert!(text.contains("--config FILE"), "{text}");
}

#[test]
fn a_socket_path_that_the_kernel_refuses_is_refused_here_first() {
    let long = "d".repeat(120);
    let error = Config::load(None, Some(Path::new(&long))).unwrap_err();
    assert!(matches!(error, ConfigError::SocketPathTooLong { .. }), "{error}");
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text: String) {
        if let Err(error) = parse(&text) {
            let _ = error.to_string();
        }
    }

    #[test]
    fn no_almost_right_text_panics(
        section in "(link|reactor|files|status|log|[a-z]{1,5})",
        key in "(kind|socket|listen|memory|spin|device|size|segment|level|[a-zü\"]{1,6})",
        value in "(\"[0-9a-zA-Zü.:/]{0,9}\"|[0-9]{1,30}|\\[.{0,5}\\]|.{0,6})",
    ) {
        if let Err(error) = parse(&format!("[{section}]\n{key} = {value}\n")) {
            let _ = error.to_string();
        }
    }
}

#[test]
fn the_store_is_configured_and_its_password_is_not_shown() {
    let text = "[kv]\nplacement = \"host\"\ndurability = \"always\"\nmemory = \"64MiB\"\npassword = \"open sesame\"\n";
    let config = Config::parse(Path::new("outboard.toml"), text).unwrap();
    assert_eq!((config.kv.placement, config.kv.durability), (Placement::Host, Durability::Always));
    assert_eq!(config.host().kv.password, Some(Password("open sesame".to_owned())));
    let shown = format!("{:?}{}", config.kv, config.to_toml().unwrap());
    assert!(shown.contains("durability = \"always\"") && !shown.contains("sesame"), "{shown}");
    assert!(explained("[kv]\npart = \"65MiB\"").contains("65MiB is not a power of two"));
    let text = "[kv]\noffload_clients = [\"10.0.0.0/8\"]\noffload_excluded_ports = [7000]\n";
    let config = parse(text).unwrap();
    assert_eq!(config.card().kv.offload_excluded_ports, [7000]);
    assert_eq!(config.kv.offload_clients, [Network::parse("10.0.0.0/8").unwrap()]);
    assert!(explained("[kv]\noffload_clients = [\"ten\"]").contains("neither an address nor a range"));
    assert!(explained("[kv]\noffload_excluded_ports = [65536]").contains("from 1 to 65535"));
    assert!(explained("[kv]\nenabled = \"no\"").contains("without quotes"));
    let wrong = explained("[kv]\npassword = 12345");
    assert!(wrong.contains("expected a password"), "{wrong}");
    assert!(explained("[kv]\nlisten = \"127.0.0.1:9160\"").contains("nobody else can listen there"));
}

#[test]
fn a_section_switches_volumes_on_and_says_so_when_it_is_shown() {
    assert!(!parse("").unwrap().volumes.enabled);
    let config = parse("[volumes]\n[chunkserver]\nsize = \"1GiB\"").unwrap();
    let volumes = config.card().volumes;
    assert!(volumes.enabled && config.host().volumes.enabled);
    assert_eq!(volumes.port(0), "127.0.0.1:4421".parse().unwrap());
    let ports: Vec<u16> = volumes.servers.iter().map(SocketAddr::port).collect();
    assert_eq!(ports, [4440, 4441, 4442]);
    let server = config.chunk_server(Some(volumes.servers[2]));
    assert_eq!((server.listen.port(), server.files.size), (4442, ByteSize(1 << 30)));
    assert_eq!(server.files.device, FilesDevice::Path("outboard-data/chunks.img".into()));
    let shared = "[volumes]\nmetadata = [\"http://10.0.0.1:2379\", \"http://[::1]:2379/\"]";
    let endpoints = ["10.0.0.1:2379", "[::1]:2379"].map(|endpoint| endpoint.parse().unwrap());
    assert_eq!(parse(shared).unwrap().volumes.metadata, MetadataPlace::Etcd(endpoints.to_vec()));
    assert_eq!(
        parse("[volumes]\nmetadata = \"embedded\"").unwrap().volumes.metadata,
        MetadataPlace::Embedded
    );
    for text in ["", "[volumes]", "[volumes]\nenabled = false\nhold = \"5s\"\nreplicas = 2", shared] {
        let config = parse(text).unwrap();
        let shown = config.to_toml().unwrap();
        let again = parse(&shown).unwrap();
        assert_eq!(again.to_toml().unwrap(), shown);
        assert_eq!(again.volumes.enabled, config.volumes.enabled);
    }
}

#[test]
fn the_pace_of_volumes_is_read() {
    let text = "[volumes]
lease = \"5s\"
index_memory = \"2GiB\"
lost_after = \"10min\"
rebuild_rate = \"32MiB/s\"
compact_rate = \"16MiB\"
compact_share = 0.25
compact_writes = 4096
metadata_history = true
";
    let config = parse(text).unwrap();
    let volumes = &config.volumes;
    assert_eq!((volumes.lease.0.as_secs(), volumes.lost_after.0.as_secs()), (5, 600));
    assert_eq!((volumes.rebuild_rate, volumes.compact_rate), (ByteRate(32 << 20), ByteRate(16 << 20)));
    assert_eq!((volumes.compact_share, volumes.compact_writes), (Share(250), 4096));
    assert_eq!((volumes.index_memory, volumes.metadata_history), (ByteSize(2 << 30), true));
    let shown = config.to_toml().unwrap();
    assert!(
        shown.contains("rebuild_rate = \"32MiB/s\"") && shown.contains("compact_share = 0.25"),
        "{shown}"
    );
    assert_eq!(parse(&shown).unwrap().to_toml().unwrap(), shown);
}

#[test]
fn what_volumes_do_not_do_yet_is_not_believed_to_be_done() {
    assert_eq!(
        explained("[volumes]\nclock_drift = 0.01"),
        "\
`clock_drift` in [volumes] does nothing in this version
 --> outboard.toml:2:1
  |
2 | clock_drift = 0.01
  | ^^^^^^^^^^^
  = hint: leave the line out: docs/volumes.md tells what there is of volumes"
    );
    for text in
        ["[volumes]\npool = \"other\"", "[chunkserver]\nallow = []", "[chunkserver]\nreserve = \"1GiB\""]
    {
        assert!(explained(text).contains("does nothing in this version"), "{text}");
    }
    let said = explained("[volumes]\nreplica = 3");
    assert!(said.contains("did you mean `replicas`?"), "{said}");
}

#[test]
fn a_card_has_one_port_for_volumes_or_for_an_application() {
    assert!(!parse("").unwrap().split.enabled);
    let split = parse("[split]\nmagic = \"AB\"\nmemory = \"16MiB\"").unwrap().card().split;
    assert_eq!((split.enabled, split.magic, split.memory), (true, Magic(*b"AB"), ByteSize(16 << 20)));
    for wrong in ["\"A\"", "\"ab\"", "\"ABC\"", "7"] {
        let said = explained(&format!("[split]\nmagic = {wrong}"));
        assert!(said.contains("two capital letters"), "{said}");
    }
    for both in ["[split]\n[volumes]", "[volumes]\n[split]\nmagic = \"AB\""] {
        let said = explained(both);
        assert!(said.contains("the card has one port of split messages"), "{said}");
    }
    assert!(parse("[split]\nenabled = false\n[volumes]").is_ok());
    assert!(parse("[split]\n[volumes]\nenabled = false").is_ok());
}

#[test]
fn each_port_of_volumes_has_a_link_behind_the_cards_own() {
    let text = "[volumes]\nports = [\"127.0.0.1:4421\", \"127.0.0.1:4424\"]\nplacement = \"accelerator\"";
    let config = parse(text).unwrap();
    assert_eq!(config.volumes.placement, ob_volume::tier::Placement::Accelerator);
    let (card, link) = (config.card(), config.host().link);
    assert_eq!((0..3).map(|number| card.volumes.port(number).port()).collect::<Vec<_>>(), [4421, 4424, 4421]);
    let socket = |number| link.of_port(number).socket.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!([0, 1, 2].map(socket), ["link.sock", "link-2.sock", "link-3.sock"]);
    assert_eq!(link.of_port(1).card.port(), link.card.port() + 1);
    assert_eq!(card.link.of_port(2).listen.port(), card.link.listen.port() + 2);
}

#[test]
fn volumes_that_cannot_be_kept_are_explained() {
    let cases = [
        ("metadata = \"etcd\"", "metadata cannot be in `etcd`"),
        ("metadata = []", "there can be from 1 to 9"),
        ("metadata = [\"10.0.0.1:2379\"]", "such as \"http://10.0.0.1:2379\""),
        ("metadata = [\"http://etcd:2379\"]", "`http://etcd:2379` is no endpoint of etcd"),
        ("metadata = [\"http://10.0.0.1:0\"]", "is no endpoint of etcd"),
        ("metadata = [\"http://10.0.0.1:1\", \"http://10.0.0.1:1\"]", "http://10.0.0.1:1 is there twice"),
        ("metadata = [\"https://10.0.0.1:2379\"]", "without TLS in this version"),
        ("replicas = 4", "`replicas` is 4, and `servers` names 3"),
        ("servers = [\"127.0.0.1:4440\"]", "`replicas` is 3, and `servers` names 1"),
        ("replicas = 2\nreplicas_min = 3", "set `replicas_min` to that, or less"),
        ("servers = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", "127.0.0.1:1 is there twice"),
        ("servers = []", "there can be from 1 to 16"),
        ("servers = [\"127.0.0.1:0\"]", "nothing can be reached at port 0"),
        ("hold = \"40s\"", "it can be from 1s to 29s"),
        ("replicas = 5", "it can be from 1 to 4"),
        ("lease = \"1s\"", "it can be from 2s to 1min"),
        ("index_memory = \"64MiB\"", "it can be from 256MiB to 1TiB"),
        ("lost_after = \"1s\"", "it can be from 10s to 720h"),
        ("rebuild_rate = 64", "such as \"64MiB/s\""),
        ("rebuild_rate = \"much\"", "is not a number of bytes a second"),
        ("compact_rate = \"1KiB/s\"", "it can be from 1MiB/s to 1TiB/s"),
        ("compact_share = 1.5", "it can be from 0.001 to 1.0"),
        ("compact_share = \"half\"", "such as 0.5"),
        ("compact_writes = 0", "it can be from 1 to 1048576"),
        ("ports = [\"127.0.0.1:4420\"]", "give one of them another port than 4420"),
        ("ports = [\"127.0.0.1:1\", \"127.0.0.1:4420\"]", "give one of them another port than 4420"),
        ("ports = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", "127.0.0.1:1 is there twice"),
        ("ports = []", "volumes are served nowhere"),
        (&format!("ports = [{}]", "\"127.0.0.1:0\", ".repeat(9)), "9 ports are too many"),
        (
            "ports = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n[link]\nkind = \"tcp\"\nlisten = \"127.0.0.1:0\"",
            "links of ports have the numbers behind that",
        ),
        (
            "ports = [\"127.0.0.1:4501\", \"127.0.0.1:2\"]\n[link]\nkind = \"tcp\"\nlisten = \"127.0.0.1:4500\"",
            "give one of them another port than 4501",
        ),
        (
            "controller_key = \"DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:\"",
            "set `key` in the same section",
        ),
    ];
    for (text, expected) in cases {
        let said = explained(&format!("[volumes]\n{text}"));
        assert!(said.contains(expected), "{text}: {said}");
    }
}
