//! The commands: names, how many arguments they take, which of those are keys, and what becomes of the keys.
//!
//! ```text
//!   Request ─▶ Outline::of ─▶ command, effect, changes_standing ─▶ keys()
//!                                │
//!                                ├─ card: which keys to invalidate before the request is forwarded
//!                                └─ host: which keys to lock and look up before it is applied
//! ```
//!
//! One table for both halves, so that they cannot disagree about what a request may change.

use crate::resp::{Arguments, Request};

/// What a request may do to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It touches none.
    Nothing,
    /// It reads those that it names.
    Reads,
    /// It may change those that it names.
    Writes,
    /// It looks at keys that it does not name.
    ReadsUnnamed,
    /// It may change keys that it does not name.
    WritesUnnamed,
}

impl Effect {
    /// Whether keys may be other ones afterwards.
    #[must_use]
    pub fn may_change(self) -> bool {
        matches!(self, Self::Writes | Self::WritesUnnamed)
    }
}

/// How many strings a request has, its command counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Just so many.
    Exactly(usize),
    /// So many or more.
    AtLeast(usize),
}

impl Arity {
    /// Whether a request may have so many.
    #[must_use]
    pub fn admits(self, count: usize) -> bool {
        match self {
            Self::Exactly(wanted) => count == wanted,
            Self::AtLeast(least) => count >= least,
        }
    }
}

/// Which of a request's strings are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlaces {
    /// None.
    None,
    /// The one behind the command.
    First,
    /// All behind the command.
    All,
    /// Every other one behind the command; values are between them.
    Pairs,
}

/// What the table knows of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Its name, in lower case, as errors have it.
    pub name: &'static str,
    /// How many strings it takes.
    pub arity: Arity,
    /// Which of them are keys.
    pub keys: KeyPlaces,
    /// What becomes of keys.
    pub effect: Effect,
    /// Whether it may change what the connection is allowed, the version that it speaks, or what becomes of what follows.
    pub changes_standing: bool,
}

macro_rules! commands {
    ($($variant:ident $name:literal $arity:ident($count:literal) $keys:ident $effect:ident $($standing:ident)?;)*) => {
        /// A command that the store knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )*
        }

        impl Command {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The command of this name, in lower case.
            fn of_lower_case(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// What the table knows of it.
            #[must_use]
            pub const fn traits(self) -> Traits {
                match self {
                    $(Self::$variant => Traits {
                        name: $name,
                        arity: Arity::$arity($count),
                        keys: KeyPlaces::$keys,
                        effect: Effect::$effect,
                        changes_standing: commands!(@standing $($standing)?),
                    },)*
                }
            }
        }
    };
    (@standing) => { false };
    (@standing Standing) => { true };
}

commands! {
    Get         "get"         Exactly(2) First Reads;
    Strlen      "strlen"      Exactly(2) First Reads;
    Getrange    "getrange"    Exactly(4) First Reads;
    Ttl         "ttl"         Exactly(2) First Reads;
    Pttl        "pttl"        Exactly(2) First Reads;
    Expiretime  "expiretime"  Exactly(2) First Reads;
    Pexpiretime "pexpiretime" Exactly(2) First Reads;
    Type        "type"        Exactly(2) First Reads;
    Mget        "mget"        AtLeast(2) All   Reads;
    Exists      "exists"      AtLeast(2) All   Reads;
    Touch       "touch"       AtLeast(2) All   Reads;
    Set         "set"         AtLeast(3) First Writes;
    Setnx       "setnx"       Exactly(3) First Writes;
    Setex       "setex"       Exactly(4) First Writes;
    Psetex      "psetex"      Exactly(4) First Writes;
    Getset      "getset"      Exactly(3) First Writes;
    Getdel      "getdel"      Exactly(2) First Writes;
    Append      "append"      Exactly(3) First Writes;
    Incr        "incr"        Exactly(2) First Writes;
    Decr        "decr"        Exactly(2) First Writes;
    Incrby      "incrby"      Exactly(3) First Writes;
    Decrby      "decrby"      Exactly(3) First Writes;
    Expire      "expire"      AtLeast(3) First Writes;
    Pexpire     "pexpire"     AtLeast(3) First Writes;
    Expireat    "expireat"    AtLeast(3) First Writes;
    Pexpireat   "pexpireat"   AtLeast(3) First Writes;
    Persist     "persist"     Exactly(2) First Writes;
    Del         "del"         AtLeast(2) All   Writes;
    Unlink      "unlink"      AtLeast(2) All   Writes;
    Mset        "mset"        AtLeast(3) Pairs Writes;
    Msetnx      "msetnx"      AtLeast(3) Pairs Writes;
    Scan        "scan"        AtLeast(2) None  ReadsUnnamed;
    Dbsize      "dbsize"      Exactly(1) None  ReadsUnnamed;
    Flushall    "flushall"    AtLeast(1) None  WritesUnnamed;
    Flushdb     "flushdb"     AtLeast(1) None  WritesUnnamed;
    Ping        "ping"        AtLeast(1) None  Nothing;
    Echo        "echo"        Exactly(2) None  Nothing;
    Info        "info"        AtLeast(1) None  Nothing;
    Config      "config"      AtLeast(2) None  Nothing;
    Command     "command"     AtLeast(1) None  Nothing;
    Client      "client"      AtLeast(2) None  Nothing;
    Auth        "auth"        AtLeast(2) None  Nothing Standing;
    Hello       "hello"       AtLeast(1) None  Nothing Standing;
    Reset       "reset"       Exactly(1) None  Nothing Standing;
    Select      "select"      Exactly(2) None  Nothing Standing;
    Quit        "quit"        AtLeast(1) None  Nothing Standing;
    Multi       "multi"       Exactly(1) None  Nothing Standing;
    Exec        "exec"        Exactly(1) None  Nothing Standing;
    Discard     "discard"     Exactly(1) None  Nothing Standing;
}

/// No command has a longer name.
const NAME_LEN_MAX: usize = 16;

impl Command {
    /// The command of this name, in any case.
    #[must_use]
    pub fn find(name: &[u8]) -> Option<Self> {
        let mut lower_case = [0; NAME_LEN_MAX];
        let lower_case = lower_case.get_mut(..name.len())?;
        for (to, from) in lower_case.iter_mut().zip(name) {
            *to = from.to_ascii_lowercase();
        }
        Self::of_lower_case(std::str::from_utf8(lower_case).ok()?)
    }
}

/// Why a request is answered without being applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutlineError {
    /// There is no such command.
    Unknown,
    /// The command takes more strings, or fewer.
    Arity(Command),
}

/// What can be said of a request before it is applied.
#[derive(Clone, Debug)]
pub struct Outline<'a> {
    /// Its command.
    pub command: Command,
    /// What may become of keys.
    pub effect: Effect,
    /// Whether it may change what the connection is allowed, the version that it speaks, or what becomes of what follows.
    pub changes_standing: bool,
    places: KeyPlaces,
    arguments: Arguments<'a>,
}

impl<'a> Outline<'a> {
    /// Looks at a request.
    ///
    /// # Errors
    ///
    /// When the request is nothing that the store applies: it is answered with an error, and changes nothing.
    pub fn of(request: &'a Request<'_>) -> Result<Self, OutlineError> {
        let mut arguments = request.arguments();
        let count = arguments.len();
        let command = arguments.next().and_then(Command::find).ok_or(OutlineError::Unknown)?;
        let traits = command.traits();
        let is_paired = traits.keys != KeyPlaces::Pairs || count % 2 == 1;
        if !traits.arity.admits(count) || !is_paired {
            return Err(OutlineError::Arity(command));
        }
        let Traits { keys: places, effect, changes_standing, .. } = traits;
        Ok(Self { command, effect, changes_standing, places, arguments })
    }

    /// The strings behind the command.
    #[must_use]
    pub fn arguments(&self) -> Arguments<'a> {
        self.arguments.clone()
    }

    /// The keys that it names, in its order; one may be there twice.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (count, step) = match self.places {
            KeyPlaces::None => (0, 1),
            KeyPlaces::First => (1, 1),
            KeyPlaces::All => (usize::MAX, 1),
            KeyPlaces::Pairs => (usize::MAX, 2),
        };
        self.arguments.clone().step_by(step).take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(line: &str) -> Result<(Command, Effect, bool, Vec<String>), OutlineError> {
        let request = Request::of_line(line.as_bytes()).unwrap();
        Outline::of(&request).map(|outline| {
            let keys = outline.keys().map(|key| String::from_utf8(key.to_vec()).unwrap()).collect();
            (outline.command, outline.effect, outline.changes_standing, keys)
        })
    }

    fn keys(line: &str) -> Vec<String> {
        outline(line).unwrap().3
    }

    #[test]
    fn the_table_names_the_keys_and_no_values() {
        assert_eq!(keys("get k"), ["k"]);
        assert_eq!(keys("SET k v ex 10 nx"), ["k"]);
        assert_eq!(keys("mget a b a"), ["a", "b", "a"]);
        assert_eq!(keys("MSET a 1 b 2"), ["a", "b"]);
        assert_eq!(keys("scan 0 match a"), [""; 0]);
        assert_eq!(keys("echo a"), [""; 0]);
    }

    #[test]
    fn effects_are_told_apart() {
        assert_eq!(outline("gEt k").unwrap().1, Effect::Reads);
        assert_eq!(outline("getdel k").unwrap().1, Effect::Writes);
        assert_eq!(outline("flushall async").unwrap().1, Effect::WritesUnnamed);
        assert!(outline("hello 3").unwrap().2);
        assert!(outline("multi").unwrap().2);
        assert!(!outline("ping").unwrap().2);
    }

    #[test]
    fn what_is_not_applied_is_said() {
        assert_eq!(outline("lpush a b"), Err(OutlineError::Unknown));
        assert_eq!(outline(&"x".repeat(1000)), Err(OutlineError::Unknown));
        assert_eq!(outline("get"), Err(OutlineError::Arity(Command::Get)));
        assert_eq!(outline("get a b"), Err(OutlineError::Arity(Command::Get)));
        assert_eq!(outline("mset a 1 b"), Err(OutlineError::Arity(Command::Mset)));
    }

    #[test]
    fn every_command_is_found_by_its_name() {
        for command in Command::ALL {
            let name = command.traits().name;
            assert_eq!(Command::find(name.to_ascii_uppercase().as_bytes()), Some(*command));
            assert!(name.len() <= NAME_LEN_MAX);
        }
    }
}
