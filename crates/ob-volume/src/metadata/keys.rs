//! Keys of a pool, and what their values are.

use ob_core::{ChunkId, ChunkName, SegmentId, SegmentName, ServerId, TierId, VolumeId};
use ob_format::volume::metadata::{Chunk, Pool, Segment, Server, Text, Tier, Volume};
use ob_format::volume::{LayoutError, long_digits, parse_long, parse_short, short_digits};

use super::{Key, Value};

/// Bytes of the longest name of a pool.
pub const POOL_NAME_LEN_MAX: usize = 64;

const ROOT: &str = "/outboard/";

/// Why a pool cannot be called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pool's name has 1 to {POOL_NAME_LEN_MAX} bytes, without `/` and control characters")]
pub struct KeysError;

/// Makes the keys of a pool, and knows them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// What they all begin with, a `/` at the end.
    prefix: String,
}

/// What a key of a pool is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// The pool itself.
    Pool,
    /// A tier.
    Tier(TierId),
    /// A chunk server.
    Server(ServerId),
    /// What a volume is called.
    VolumeName(Text<64>),
    /// A volume.
    Volume(VolumeId),
    /// A segment.
    Segment(SegmentName),
    /// A chunk.
    Chunk(ChunkName),
    /// That a tier wants a segment.
    Wanted(SegmentName),
}

/// What a value says, by the key that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataValue {
    /// Of the pool.
    Pool(Pool),
    /// Of a tier.
    Tier(Tier),
    /// Of a chunk server.
    Server(Server),
    /// Which volume is called so.
    VolumeName(VolumeId),
    /// Of a volume.
    Volume(Volume),
    /// Of a segment.
    Segment(Segment),
    /// Of a chunk.
    Chunk(Chunk),
    /// Which tier wants it.
    Wanted(TierId),
}

impl Keys {
    /// Of the pool that is called so.
    ///
    /// # Errors
    ///
    /// When no pool can be.
    pub fn new(pool: &str) -> Result<Self, KeysError> {
        let is_legal = (1..=POOL_NAME_LEN_MAX).contains(&pool.len())
            && !pool.chars().any(|character| character == '/' || character.is_control());
        if is_legal { Ok(Self { prefix: format!("{ROOT}{pool}/") }) } else { Err(KeysError) }
    }

    /// The key of something.
    #[must_use]
    pub fn key(&self, name: Name) -> Key {
        let path = match name {
            Name::Pool => "pool".to_owned(),
            Name::Tier(tier) => format!("tiers/{}", long_digits(tier.0)),
            Name::Server(server) => format!("servers/{}", long_digits(server.0)),
            Name::VolumeName(name) => format!("names/{name}"),
            Name::Volume(volume) => format!("volumes/{}", long_digits(volume.0)),
            Name::Segment(segment) => format!("segments/{}", segment_path(segment)),
            Name::Chunk(chunk) => {
                format!("chunks/{}/{}", segment_path(chunk.segment_name()), short_digits(chunk.chunk.0))
            }
            Name::Wanted(segment) => format!("wanted/{}", segment_path(segment)),
        };
        self.of_path(&path)
    }

    /// What all tiers' keys begin with.
    #[must_use]
    pub fn tiers(&self) -> Key {
        self.of_path("tiers/")
    }

    /// What all servers' keys begin with.
    #[must_use]
    pub fn servers(&self) -> Key {
        self.of_path("servers/")
    }

    /// What all volumes' keys begin with.
    #[must_use]
    pub fn volumes(&self) -> Key {
        self.of_path("volumes/")
    }

    /// What keys of all segments of a volume begin with.
    #[must_use]
    pub fn segments(&self, volume: VolumeId) -> Key {
        self.of_path(&format!("segments/{}/", long_digits(volume.0)))
    }

    /// What keys of all chunks of a segment begin with.
    #[must_use]
    pub fn chunks(&self, segment: SegmentName) -> Key {
        self.of_path(&format!("chunks/{}/", segment_path(segment)))
    }

    /// What all keys begin with that say what tiers want.
    #[must_use]
    pub fn wanted(&self) -> Key {
        self.of_path("wanted/")
    }

    /// What a key is of; nothing, if it is none of this pool's, or not as they are.
    #[must_use]
    pub fn parse(&self, key: &Key) -> Option<Name> {
        let path = key.as_str().strip_prefix(&self.prefix)?;
        let mut words = path.split('/');
        let mut next = || words.next();
        let name = match next()? {
            "pool" => Name::Pool,
            "tiers" => Name::Tier(TierId(number(next()?)?)),
            "servers" => Name::Server(ServerId(number(next()?)?)),
            "names" => Name::VolumeName(Text::new(next()?).filter(|name| !name.is_empty())?),
            "volumes" => Name::Volume(VolumeId(number(next()?)?)),
            "segments" => Name::Segment(segment(next()?, next()?)?),
            "chunks" => {
                let segment = segment(next()?, next()?)?;
                let chunk = parse_short(next()?).filter(|chunk| *chunk != 0)?;
                Name::Chunk(ChunkName::new(segment, ChunkId(chunk)))
            }
            "wanted" => Name::Wanted(segment(next()?, next()?)?),
            _ => return None,
        };
        next().is_none().then_some(name)
    }

    fn of_path(&self, path: &str) -> Key {
        // No pool's name is so long that a key would be too long, which a test sees to.
        Key(format!("{}{path}", self.prefix).into())
    }
}

fn segment_path(segment: SegmentName) -> String {
    format!("{}/{}", long_digits(segment.volume.0), short_digits(segment.segment.0))
}

fn segment(volume: &str, number_of_it: &str) -> Option<SegmentName> {
    Some(SegmentName { volume: VolumeId(number(volume)?), segment: SegmentId(parse_short(number_of_it)?) })
}

/// A number of something that is not nothing.
fn number(digits: &str) -> Option<u64> {
    parse_long(digits).filter(|number| *number != 0)
}

impl MetadataValue {
    /// Checks what the key of something has.
    ///
    /// # Errors
    ///
    /// When it is not of that, damaged, or of a version that this build does not know.
    pub fn decode(name: &Name, value: &[u8]) -> Result<Self, LayoutError> {
        let id = || {
            let digits = std::str::from_utf8(value).ok();
            digits.and_then(number).ok_or(LayoutError::Illegal("what should be a number is none"))
        };
        Ok(match name {
            Name::Pool => Self::Pool(Pool::decode(value)?),
            Name::Tier(_) => Self::Tier(Tier::decode(value)?),
            Name::Server(_) => Self::Server(Server::decode(value)?),
            Name::VolumeName(_) => Self::VolumeName(VolumeId(id()?)),
            Name::Volume(_) => Self::Volume(Volume::decode(value)?),
            Name::Segment(_) => Self::Segment(Segment::decode(value)?),
            Name::Chunk(_) => Self::Chunk(Chunk::decode(value)?),
            Name::Wanted(_) => Self::Wanted(TierId(id()?)),
        })
    }

    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When it says what cannot be.
    pub fn encode(&self) -> Result<Value, LayoutError> {
        let bytes = match self {
            Self::Pool(pool) => pool.encode()?.to_vec(),
            Self::Tier(tier) => tier.encode()?.to_vec(),
            Self::Server(server) => server.encode()?.to_vec(),
            Self::Volume(volume) => volume.encode()?.to_vec(),
            Self::Segment(segment) => segment.encode()?.to_vec(),
            Self::Chunk(chunk) => chunk.encode()?.to_vec(),
            Self::VolumeName(VolumeId(id)) | Self::Wanted(TierId(id)) if *id == 0 => {
                return Err(LayoutError::Illegal("something without a number"));
            }
            Self::VolumeName(VolumeId(id)) | Self::Wanted(TierId(id)) => long_digits(*id).into_bytes(),
        };
        Ok(Value(bytes.into()))
    }
}
