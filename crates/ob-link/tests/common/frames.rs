//! Frames of any kind, legal in form, from numbers.

use ob_core::{AttachmentId, GroupId, Incarnation, RegionId};
use ob_wire_link::frame::{Frame, GroupOpened, Hello, LinkKind, Resume, VERSION, Welcome};
use ob_wire_link::group::GroupSizes;

/// How many kinds there are for [`any`].
pub const KINDS: u8 = 20;

/// The frame of this kind with these contents. Numbers are used as they are where any is legal in form.
pub fn any(kind: u8, numbers: [u64; 4], bytes: &[u8]) -> Frame<'_> {
    let [a, b, c, d] = numbers;
    let (region, small) = (RegionId(b as u32), |number: u64| number as u32);
    match kind % KINDS {
        0 => Frame::Hello(hello(a, b, c, d)),
        1 => Frame::Welcome(welcome(a, b, c, d)),
        2 => Frame::Refused { code: small(a), text: "no" },
        3 => Frame::OpenGroup { request: small(a), service: small(b), sizes: sizes(c, d) },
        4 => Frame::GroupOpened(GroupOpened {
            request: small(a),
            group: GroupId(small(a >> 32)),
            region,
            sizes: sizes(c, c),
            service: super::ECHO,
            region_len: 4096 + 2 * (c & 0xffff_ffff) + sizes(c, c).card_area + sizes(c, c).host_area,
        }),
        5 => Frame::GroupRefused { request: small(a), code: small(b), text: "no" },
        6 => Frame::CloseGroup { group: GroupId(small(a)) },
        7 => Frame::GroupClosed { group: GroupId(small(a)), reason: small(b), text: "" },
        8 => Frame::Channel(bytes),
        9 => Frame::Ack { count: a },
        10 => Frame::Doorbell,
        11 => Frame::Ping { nonce: a },
        12 => Frame::Pong { nonce: a },
        13 => Frame::Goodbye { code: small(a), text: "bye" },
        14 => Frame::DmaRead { tag: a, region, offset: c, len: small(d) & 0xf_ffff },
        15 => Frame::DmaWrite { tag: a, region, offset: c, bytes },
        16 => Frame::DmaReadWords { tag: a, region, offset: c, stride: small(d), count: (d >> 32) as u8 },
        17 => Frame::DmaWriteWord { tag: a, region, offset: c, value: d },
        18 => Frame::RingBell { region, offset: c },
        _ => Frame::DmaDone { tag: a, status: small(b), bytes },
    }
}

/// Rings of these numbers, and areas where they have more bits than a ring's capacity.
fn sizes(request: u64, response: u64) -> GroupSizes {
    GroupSizes {
        request: request as u32,
        response: response as u32,
        card_area: (request >> 32) * 512,
        host_area: (response >> 32) * 512,
    }
}

fn hello(a: u64, b: u64, c: u64, d: u64) -> Hello {
    let resume =
        Resume { attachment: AttachmentId(a | 1), secret: b, received: c, card_incarnation: Incarnation(d) };
    let resume = (d > 0).then_some(resume);
    Hello {
        version: VERSION,
        pollers: 0,
        host_incarnation: Incarnation(b | 1),
        resume,
        name: "any".to_owned(),
    }
}

fn welcome(a: u64, b: u64, c: u64, d: u64) -> Welcome {
    Welcome {
        pollers: 0,
        resumed: d & 1 == 1,
        card_incarnation: Incarnation(a | 1),
        attachment: AttachmentId(a | 1),
        resume_secret: b,
        received: c,
        transfer_max: d,
        kind: [LinkKind::Shm, LinkKind::Model, LinkKind::Tcp][(d % 3) as usize],
    }
}
