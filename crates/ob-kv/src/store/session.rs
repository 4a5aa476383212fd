//! Client connections, and the commands that are about them rather than about keys.

use std::net::SocketAddr;

use super::errors::{self, Refusal};
use super::glob;
use super::stats::Facts;
use crate::command::{Arity, Command, Effect, KeyPlaces, Outline, OutlineError};
use crate::resp::{Replies, Request, Version};

/// The version of Redis whose commands these are, for clients that decide by it.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// Bytes of the longest name of a connection, and of its library.
const NAME_LEN_MAX: usize = 1024;

/// One client connection.
#[derive(Clone, Debug)]
pub struct Session {
    id: u64,
    /// Where the client is, as the card sees it.
    address: Option<SocketAddr>,
    version: Version,
    is_authenticated: bool,
    /// How it was when it began.
    needs_password: bool,
    /// What follows belongs to a transaction. There are none here, and nothing of one may be applied.
    is_in_transaction: bool,
    name: Vec<u8>,
    library_name: Vec<u8>,
    library_version: Vec<u8>,
}

impl Session {
    /// A new connection; see [`super::Store::open`].
    pub(crate) fn new(id: u64, needs_password: bool) -> Self {
        Self {
            id,
            address: None,
            version: Version::default(),
            is_authenticated: !needs_password,
            needs_password,
            is_in_transaction: false,
            name: Vec::new(),
            library_name: Vec::new(),
            library_version: Vec::new(),
        }
    }

    /// The same, of a client that is there.
    pub(crate) fn of_client(self, address: SocketAddr) -> Self {
        Self { address: Some(address), ..self }
    }

    /// What the card may do for it: 0 for nothing, else the version of the protocol that it is to speak.
    #[must_use]
    pub fn standing(&self) -> u32 {
        match (self.is_authenticated && !self.is_in_transaction, self.version) {
            (false, _) => 0,
            (true, Version::Resp2) => 2,
            (true, Version::Resp3) => 3,
        }
    }

    /// Which version it speaks.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether its client has said who it is, or need not.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether it may run this before it is authenticated.
    pub(crate) fn admits(&self, command: Command) -> bool {
        let is_for_strangers =
            matches!(command, Command::Auth | Command::Hello | Command::Reset | Command::Quit);
        self.is_authenticated || is_for_strangers
    }

    /// Whether it belongs to a transaction, and is not to be applied.
    pub(crate) fn queues(&self, command: Command) -> bool {
        use Command::{Discard, Exec, Multi, Quit, Reset};
        self.is_in_transaction && !matches!(command, Multi | Exec | Discard | Reset | Quit)
    }
}

/// What becomes of a connection, or of the store, after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    GoOn,
    Close,
    /// It goes on, and what was counted is counted anew.
    ResetStats,
}

/// Runs a command that touches no key.
pub(crate) fn run(
    session: &mut Session,
    outline: &Outline<'_>,
    facts: &Facts<'_>,
    into: &mut Vec<u8>,
) -> Result<After, Refusal> {
    // HELLO answers in the version that it has chosen, everything else in the one that was there before.
    let replies = &mut Replies::new(into, session.version);
    let argument = |at: usize| outline.arguments().nth(at).unwrap_or_default();
    match outline.command {
        Command::Ping => match outline.arguments().len() {
            0 => replies.simple("PONG"),
            1 => replies.bulk(argument(0)),
            _ => return Err(errors::wrong_arity("ping")),
        },
        Command::Echo => replies.bulk(argument(0)),
        Command::Select => select(argument(0), replies)?,
        Command::Auth => authenticate(session, outline, facts, replies)?,
        Command::Hello => hello(session, outline, facts, into)?,
        Command::Reset => {
            let address = session.address;
            *session = Session { address, ..Session::new(session.id, session.needs_password) };
            replies.simple("RESET");
        }
        Command::Quit => {
            replies.simple("OK");
            return Ok(After::Close);
        }
        Command::Multi | Command::Exec | Command::Discard => transaction(session, outline.command, replies)?,
        Command::Client => client(session, outline, replies)?,
        Command::Config => return config(outline, facts, replies),
        Command::Command => commands(outline, replies)?,
        Command::Info => replies.text(&facts.info(outline.arguments())),
        _ => return Err(errors::SYNTAX),
    }
    Ok(After::GoOn)
}

/// As Redis does where a command of a transaction cannot be queued, which here is each: libraries know then that nothing was done. An error
/// to MULTI itself would leave those that wait for it in another state than the connection.
fn transaction(session: &mut Session, command: Command, replies: &mut Replies<'_>) -> Result<(), Refusal> {
    let was_in_one = std::mem::replace(&mut session.is_in_transaction, command == Command::Multi);
    match (command, was_in_one) {
        (Command::Multi, true) => Err(Refusal("ERR MULTI calls can not be nested".into())),
        (Command::Exec, true) => Err(errors::TRANSACTION_ABORTED),
        (Command::Multi, false) | (_, true) => {
            replies.simple("OK");
            Ok(())
        }
        (_, false) => {
            let name = command.traits().name.to_ascii_uppercase();
            Err(errors::other(format!("ERR {name} without MULTI")))
        }
    }
}

fn select(database: &[u8], replies: &mut Replies<'_>) -> Result<(), Refusal> {
    match super::arguments::integer(database)? {
        0 => replies.simple("OK"),
        _ => return Err(Refusal("ERR DB index is out of range".into())),
    }
    Ok(())
}

const DEFAULT_USER: &[u8] = b"default";

fn check_password(
    session: &mut Session,
    user: &[u8],
    password: &[u8],
    facts: &Facts<'_>,
) -> Result<(), Refusal> {
    let is_right = match facts.password {
        Some(wanted) => is_equal(wanted.as_bytes(), password),
        None => true,
    };
    if user != DEFAULT_USER || !is_right {
        let text = "WRONGPASS invalid username-password pair or user is disabled.";
        return Err(Refusal(text.into()));
    }
    session.is_authenticated = true;
    Ok(())
}

/// Compares in a time that tells nothing but the lengths.
fn is_equal(wanted: &[u8], given: &[u8]) -> bool {
    let differences = wanted.iter().zip(given).fold(0, |sum, (wanted, given)| sum | (wanted ^ given));
    wanted.len() == given.len() && differences == 0
}

fn authenticate(
    session: &mut Session,
    outline: &Outline<'_>,
    facts: &Facts<'_>,
    replies: &mut Replies<'_>,
) -> Result<(), Refusal> {
    let mut arguments = outline.arguments();
    let (user, password) = match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(password), None, _) if facts.password.is_some() => (DEFAULT_USER, password),
        (_, None, _) => {
            let text = "ERR AUTH <password> called without any password configured for the default user. \
                        Are you sure your configuration is correct?";
            return Err(Refusal(text.into()));
        }
        (Some(user), Some(password), None) => (user, password),
        _ => return Err(errors::SYNTAX),
    };
    check_password(session, user, password, facts)?;
    replies.simple("OK");
    Ok(())
}

fn hello(
    session: &mut Session,
    outline: &Outline<'_>,
    facts: &Facts<'_>,
    into: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let mut arguments = outline.arguments();
    let version = match arguments.next().map(super::arguments::integer) {
        None => session.version,
        Some(Ok(2)) => Version::Resp2,
        Some(Ok(3)) => Version::Resp3,
        Some(Ok(_)) => return Err(Refusal("NOPROTO unsupported protocol version".into())),
        Some(Err(_)) => {
            return Err(Refusal("ERR Protocol version is not an integer or out of range".into()));
        }
    };
    let (mut credentials, mut name) = (None, None);
    while let Some(option) = arguments.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"auth" if arguments.len() >= 2 => credentials = arguments.next().zip(arguments.next()),
            b"setname" if arguments.len() >= 1 => {
                let given = arguments.next().unwrap_or_default();
                check_name(given)?;
                name = Some(given);
            }
            _ => {
                let option = shown(option);
                return Err(errors::other(format!("ERR Syntax error in HELLO option '{option}'")));
            }
        }
    }
    if let Some((user, password)) = credentials {
        check_password(session, user, password, facts)?;
    }
    if !session.is_authenticated {
        let text = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
                    protocol version at the same time";
        return Err(Refusal(text.into()));
    }
    session.version = version;
    if let Some(name) = name {
        session.name = name.to_vec();
    }
    greet(session, &mut Replies::new(into, version));
    Ok(())
}

fn greet(session: &Session, replies: &mut Replies<'_>) {
    replies.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        replies.bulk(field.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(if session.version == Version::Resp3 { 3 } else { 2 });
    replies.bulk(b"id");
    replies.integer(session.id as i64);
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(field.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"modules");
    replies.array(0);
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..bytes.len().min(128)).unwrap_or_default()).into_owned()
}

/// A name that a connection may have; a long one would be memory that nobody counts.
fn is_plain(text: &[u8]) -> bool {
    text.len() <= NAME_LEN_MAX && text.iter().all(u8::is_ascii_graphic)
}

fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if is_plain(name) {
        return Ok(());
    }
    Err(Refusal("ERR Client names cannot contain spaces, newlines or special characters.".into()))
}

fn client(session: &mut Session, outline: &Outline<'_>, replies: &mut Replies<'_>) -> Result<(), Refusal> {
    let arguments: Vec<&[u8]> = outline.arguments().take(4).collect();
    let Some((subcommand, rest)) = arguments.split_first() else { return Err(errors::SYNTAX) };
    match (subcommand.to_ascii_lowercase().as_slice(), rest) {
        (b"id", []) => replies.integer(session.id as i64),
        (b"getname", []) if session.name.is_empty() => replies.null(),
        (b"getname", []) => replies.bulk(&session.name),
        (b"setname", [name]) => {
            check_name(name)?;
            session.name = name.to_vec();
            replies.simple("OK");
        }
        (b"setinfo", [field, value]) => {
            let place = match field.to_ascii_lowercase().as_slice() {
                b"lib-name" => &mut session.library_name,
                b"lib-ver" => &mut session.library_version,
                _ => return Err(errors::other(format!("ERR Unrecognized option '{}'", shown(field)))),
            };
            if !is_plain(value) {
                let text = "cannot contain spaces, newlines or special characters.";
                return Err(errors::other(format!("ERR {} {text}", shown(field))));
            }
            *place = value.to_vec();
            replies.simple("OK");
        }
        (b"info" | b"list", []) => replies.text(&line(session)),
        (b"no-evict" | b"no-touch", [flag]) if is_one_of(flag, &["on", "off"]) => replies.simple("OK"),
        (b"reply", [flag]) if is_one_of(flag, &["on"]) => replies.simple("OK"),
        (b"no-evict" | b"no-touch" | b"reply", [_]) => return Err(errors::SYNTAX),
        (b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"no-evict" | b"no-touch", _) => {
            let name = String::from_utf8_lossy(subcommand).to_ascii_lowercase();
            return Err(errors::wrong_arity(&format!("client|{name}")));
        }
        _ => return Err(errors::unknown_subcommand("client", subcommand)),
    }
    Ok(())
}

fn is_one_of(word: &[u8], words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

fn line(session: &Session) -> String {
    let text = String::from_utf8_lossy;
    let version = if session.version == Version::Resp3 { 3 } else { 2 };
    let address = session.address.map_or_else(String::new, |address| address.to_string());
    format!(
        "id={} addr={address} name={} db=0 user=default lib-name={} lib-ver={} resp={version}\n",
        session.id,
        text(&session.name),
        text(&session.library_name),
        text(&session.library_version),
    )
}

fn config(outline: &Outline<'_>, facts: &Facts<'_>, replies: &mut Replies<'_>) -> Result<After, Refusal> {
    let mut arguments = outline.arguments();
    let subcommand = arguments.next().unwrap_or_default();
    match subcommand.to_ascii_lowercase().as_slice() {
        b"get" if arguments.len() > 0 => {
            let wanted = wanted_settings(facts.settings(), &arguments)?;
            replies.map(wanted.len());
            for (name, value) in wanted {
                replies.bulk(name.as_bytes());
                replies.bulk(value.as_bytes());
            }
        }
        b"get" => return Err(errors::wrong_arity("config|get")),
        b"resetstat" if arguments.len() == 0 => {
            replies.simple("OK");
            return Ok(After::ResetStats);
        }
        b"set" if arguments.len() >= 2 => {
            let name = shown(arguments.next().unwrap_or_default());
            let text = "ERR Unknown option or number of arguments for CONFIG SET - ";
            return Err(errors::other(format!("{text}'{name}'")));
        }
        b"set" => return Err(errors::wrong_arity("config|set")),
        _ => return Err(errors::unknown_subcommand("config", subcommand)),
    }
    Ok(After::GoOn)
}

/// The settings that any of the patterns fits.
fn wanted_settings<'a>(
    settings: Vec<(&'static str, String)>,
    patterns: &(impl Iterator<Item = &'a [u8]> + Clone),
) -> Result<Vec<(&'static str, String)>, Refusal> {
    let mut effort = glob::Effort::default();
    let mut wanted = Vec::new();
    for (name, value) in settings {
        for pattern in patterns.clone() {
            if glob::matches(pattern, name.as_bytes(), true, &mut effort)? {
                wanted.push((name, value));
                break;
            }
        }
    }
    Ok(wanted)
}

fn commands(outline: &Outline<'_>, replies: &mut Replies<'_>) -> Result<(), Refusal> {
    let mut arguments = outline.arguments();
    let Some(subcommand) = arguments.next() else {
        replies.array(Command::ALL.len());
        Command::ALL.iter().for_each(|command| describe(*command, replies));
        return Ok(());
    };
    match subcommand.to_ascii_lowercase().as_slice() {
        b"count" if arguments.len() == 0 => replies.integer(Command::ALL.len() as i64),
        b"count" => return Err(errors::wrong_arity("command|count")),
        b"getkeys" if arguments.len() >= 2 => return keys_of(arguments, replies),
        b"getkeys" => return Err(errors::wrong_arity("command|getkeys")),
        b"docs" => replies.map(0),
        b"list" => {
            replies.array(Command::ALL.len());
            Command::ALL.iter().for_each(|command| replies.bulk(command.traits().name.as_bytes()));
        }
        b"info" => {
            replies.array(arguments.len());
            for name in arguments {
                match Command::find(name) {
                    Some(command) => describe(command, replies),
                    None => replies.null(),
                }
            }
        }
        _ => return Err(errors::unknown_subcommand("command", subcommand)),
    }
    Ok(())
}

/// The keys of a request that is given as arguments.
fn keys_of<'a>(arguments: impl Iterator<Item = &'a [u8]>, replies: &mut Replies<'_>) -> Result<(), Refusal> {
    let request = Request::of_words(arguments);
    let outline = Outline::of(&request).map_err(|error| match error {
        OutlineError::Unknown => errors::other("ERR Invalid command specified".to_owned()),
        OutlineError::Arity(_) => {
            errors::other("ERR Invalid number of arguments specified for command".to_owned())
        }
    })?;
    let count = outline.keys().count();
    if count == 0 {
        return Err(errors::other("ERR The command has no key arguments".to_owned()));
    }
    replies.array(count);
    outline.keys().for_each(|key| replies.bulk(key));
    Ok(())
}

/// Name, arity, flags, first key, last key, step; and categories, hints, more on keys, subcommands, of which there are none.
fn describe(command: Command, replies: &mut Replies<'_>) {
    let traits = command.traits();
    replies.array(10);
    replies.bulk(traits.name.as_bytes());
    replies.integer(match traits.arity {
        Arity::Exactly(count) => count as i64,
        Arity::AtLeast(count) => -(count as i64),
    });
    match traits.effect {
        Effect::Nothing => replies.set(0),
        effect => {
            replies.set(1);
            replies.simple(if effect.may_change() { "write" } else { "readonly" });
        }
    }
    let (first, last, step) = match traits.keys {
        KeyPlaces::None => (0, 0, 0),
        KeyPlaces::First => (1, 1, 1),
        KeyPlaces::All => (1, -1, 1),
        KeyPlaces::Pairs => (1, -1, 2),
    };
    for place in [first, last, step] {
        replies.integer(place);
    }
    replies.set(0);
    for _ in 0..3 {
        replies.array(0);
    }
}
