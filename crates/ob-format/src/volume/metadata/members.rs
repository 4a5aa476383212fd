//! Who is there: the pool, its tiers, its servers.

use ob_core::{GateId, Incarnation, LockId, PoolId, SessionId, layout};
use zerocopy::little_endian::{U16, U32, U64};

use super::super::{LayoutError, must};
use super::{Text, beginning, open, seal};

/// Bytes of a pool's value.
pub const POOL_LEN: usize = 64;
/// Bytes of a tier's value.
pub const TIER_LEN: usize = 192;
/// Bytes of a server's value.
pub const SERVER_LEN: usize = 192;

pub(crate) const POOL_MAGIC: [u8; 4] = *b"OBMP";
pub(crate) const TIER_MAGIC: [u8; 4] = *b"OBMT";
pub(crate) const SERVER_MAGIC: [u8; 4] = *b"OBMS";

/// Millionths of a whole: a drift that large is none.
const PPM: u32 = 1_000_000;

layout!(PoolBody, POOL_LEN, {
    magic: [u8; 4], version: U16, length: U16, crc: U32, drift_ppm: U32, uuid: [u8; 16], volume_next: U64,
    namespace_next: U32, reserved: [u8; 20],
});
layout!(TierBody, TIER_LEN, {
    magic: [u8; 4], version: U16, length: U16, crc: U32, lease_ms: U32, session: U64, gate: U64, incarnation: U64,
    lock: [u8; 16], reserved: [u8; 8], addresses: [u8; 128],
});
layout!(ServerBody, SERVER_LEN, {
    magic: [u8; 4], version: U16, length: U16, crc: U32, state: u8, reserved: [u8; 3], capacity: U64,
    reserved_end: [u8; 8], domain: [u8; 32], address: [u8; 128],
});

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// How wrong a clock may run, in millionths.
    pub drift_ppm: u32,
    /// Which pool it is.
    pub pool: PoolId,
    /// The id of the next volume; ids are never used again.
    pub volume_next: u64,
    /// Its NSID, likewise.
    pub namespace_next: u32,
}

/// A tier that is alive, by its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// How long its lease is.
    pub lease_ms: u32,
    /// Its session.
    pub session: SessionId,
    /// Which life of its host.
    pub gate: GateId,
    /// Which life of its card.
    pub incarnation: Incarnation,
    /// What keeps lives of its card apart.
    pub lock: LockId,
    /// Where it is reached, `,` between.
    pub addresses: Text<128>,
}

codes!(
    /// Whether a server takes chunks.
    ServerState {
        /// It does.
        In = 1,
        /// Not any more, and those that it has are copied away.
        Draining = 2,
        /// What it had is gone.
        Out = 3,
    }
);

/// A chunk server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Whether it takes chunks.
    pub state: ServerState,
    /// Bytes of its device when it joined.
    pub capacity: u64,
    /// What fails together with it.
    pub domain: Text<32>,
    /// Where it is reached.
    pub address: Text<128>,
}

impl Pool {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such pool.
    pub fn encode(&self) -> Result<[u8; POOL_LEN], LayoutError> {
        self.check()?;
        let begin = beginning(POOL_MAGIC, POOL_LEN);
        let mut body = PoolBody {
            magic: begin.magic,
            version: begin.version,
            length: begin.length,
            crc: begin.crc,
            drift_ppm: self.drift_ppm.into(),
            uuid: self.pool.0,
            volume_next: self.volume_next.into(),
            namespace_next: self.namespace_next.into(),
            reserved: [0; 20],
        };
        seal(&mut body);
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When it is not a pool's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let body: &PoolBody = open(bytes, POOL_MAGIC)?;
        must(body.reserved == [0; 20], "reserved bytes are not zero")?;
        let pool = Self {
            drift_ppm: body.drift_ppm.get(),
            pool: PoolId(body.uuid),
            volume_next: body.volume_next.get(),
            namespace_next: body.namespace_next.get(),
        };
        pool.check()?;
        Ok(pool)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.drift_ppm < PPM, "clocks that may stand still")?;
        must(self.pool != PoolId::default(), "a pool without a number")?;
        must(self.volume_next > 0 && self.namespace_next > 0, "a volume or namespace without a number")
    }
}

impl Tier {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such tier.
    pub fn encode(&self) -> Result<[u8; TIER_LEN], LayoutError> {
        self.check()?;
        let begin = beginning(TIER_MAGIC, TIER_LEN);
        let mut body = TierBody {
            magic: begin.magic,
            version: begin.version,
            length: begin.length,
            crc: begin.crc,
            lease_ms: self.lease_ms.into(),
            session: self.session.0.into(),
            gate: self.gate.0.into(),
            incarnation: self.incarnation.0.into(),
            lock: self.lock.0,
            reserved: [0; 8],
            addresses: self.addresses.field(),
        };
        seal(&mut body);
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When it is not a tier's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let body: &TierBody = open(bytes, TIER_MAGIC)?;
        must(body.reserved == [0; 8], "reserved bytes are not zero")?;
        let tier = Self {
            lease_ms: body.lease_ms.get(),
            session: SessionId(body.session.get()),
            gate: GateId(body.gate.get()),
            incarnation: Incarnation(body.incarnation.get()),
            lock: LockId(body.lock),
            addresses: Text::from_field(&body.addresses)?,
        };
        tier.check()?;
        Ok(tier)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.lease_ms > 0, "a lease of no time")?;
        must(self.session.0 != 0, "a session without a number")
    }
}

impl Server {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such server.
    pub fn encode(&self) -> Result<[u8; SERVER_LEN], LayoutError> {
        self.check()?;
        let begin = beginning(SERVER_MAGIC, SERVER_LEN);
        let mut body = ServerBody {
            magic: begin.magic,
            version: begin.version,
            length: begin.length,
            crc: begin.crc,
            state: self.state.code(),
            reserved: [0; 3],
            capacity: self.capacity.into(),
            reserved_end: [0; 8],
            domain: self.domain.field(),
            address: self.address.field(),
        };
        seal(&mut body);
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When it is not a server's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let body: &ServerBody = open(bytes, SERVER_MAGIC)?;
        must(body.reserved == [0; 3] && body.reserved_end == [0; 8], "reserved bytes are not zero")?;
        let state = ServerState::from_code(body.state);
        let server = Self {
            state: state.ok_or(LayoutError::Illegal("a state that is not known"))?,
            capacity: body.capacity.get(),
            domain: Text::from_field(&body.domain)?,
            address: Text::from_field(&body.address)?,
        };
        server.check()?;
        Ok(server)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(!self.address.is_empty(), "a server that cannot be reached")
    }
}
