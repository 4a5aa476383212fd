//! Whole exchanges that another program computed from the specification, byte for byte.
//!
//! It was written in another language, on that language's own hash functions and arithmetic, and shares nothing with the
//! code here: what it and we agree on is the specification, or a mistake that two made.

use super::*;

struct Golden {
    hash: HashId,
    group: GroupId,
    host_secret: &'static str,
    controller_secret: &'static str,
    /// What each side draws: sequence number, challenge, private value.
    target_random: [&'static str; 3],
    host_random: [&'static str; 3],
    /// Negotiate, Challenge, Reply, Success1, Success2.
    messages: [&'static str; 5],
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Gives out what was drawn when the exchange was computed, in that order.
fn script(drawn: [&'static str; 3]) -> impl FnMut(&mut [u8]) {
    let mut drawn = drawn.into_iter();
    move |out: &mut [u8]| out.copy_from_slice(&bytes(drawn.next().unwrap()))
}

fn check(golden: &Golden) {
    let mut setting = Setting::new(&only(golden.hash, golden.group), true);
    setting.host.host_secret = golden.host_secret.parse().unwrap();
    setting.host.controller_secret = Some(golden.controller_secret.parse().unwrap());
    setting.target.host_secret = golden.host_secret.parse().unwrap();
    setting.target.controller_secret = Some(golden.controller_secret.parse().unwrap());
    let (mut host, mut target) = setting.sides();
    let (mut host_random, mut target_random) = (script(golden.host_random), script(golden.target_random));
    for expected in golden.messages.map(bytes) {
        match host.step() {
            HostStep::Send(message) => {
                assert_eq!(message, expected);
                target.send(message);
                host.sent();
            }
            HostStep::Receive { allocation_len } => {
                let answer = target.receive(allocation_len, &mut target_random).unwrap();
                assert_eq!(answer.message, expected);
                host.received(&answer.message, &mut host_random);
            }
            end => panic!("the exchange is over: {end:?}"),
        }
    }
    assert!(host.is_done() && target.is_done());
}

#[test]
fn null_sha256() {
    check(&NULL_SHA256);
}

#[test]
fn ffdhe2048_sha384() {
    check(&FFDHE2048_SHA384);
}

#[test]
fn ffdhe3072_sha512() {
    check(&FFDHE3072_SHA512);
}

const NULL_SHA256: Golden = Golden {
    hash: HashId::Sha256,
    group: GroupId::Null,
    host_secret: "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    controller_secret: "DHHC-1:01:CQsNDxETFRcZGx0fISMlJykrLS8xMzU3OTs9P0FDRUftRdWd:",
    target_random: ["04030201", "101316191c1f2225282b2e3134373a3d404346494c4f5255585b5e6164676a6d", ""],
    host_random: ["d4c3b2a1", "80858a8f94999ea3a8adb2b7bcc1c6cbd0d5dadfe4e9eef3f8fd02070c11161b", ""],
    messages: [
        "0000000034120001010001010100000000000000000000000000000000000000000000000000000000000000000000000000\
        00000000000000000000000000000000000000000000",
        "01010000341220000100000004030201101316191c1f2225282b2e3134373a3d404346494c4f5255585b5e6164676a6d",
        "010200003412200001000000d4c3b2a13dd42a3c2e254d57331789628384085cbb6b2e10bb2e20d2aa1ec89b453622bb8085\
        8a8f94999ea3a8adb2b7bcc1c6cbd0d5dadfe4e9eef3f8fd02070c11161b",
        "01030000341220000100000000000000291b15f8aa19ab8ba6faa7e021eb86120fe9e2b93042150eec9d6b6d79b0564a",
        "01040000341200000000000000000000",
    ],
};

const FFDHE2048_SHA384: Golden = Golden {
    hash: HashId::Sha384,
    group: GroupId::Ffdhe2048,
    host_secret: "DHHC-1:02:AgUICw4RFBcaHSAjJiksLzI1ODs+QURHSk1QU1ZZXF9iZWhrbnF0d3p9gIOGiYyPvWbcaQ==:",
    controller_secret: "DHHC-1:03:8P0KFyQxPktYZXJ/jJmms8DN2uf0AQ4bKDVCT1xpdoOQnaq3xNHe6/gFEh8sOUZTYG16h5ShrrvI1eLv/AkWI5LSiJQ=:",
    target_random: [
        "04030201",
        "101316191c1f2225282b2e3134373a3d404346494c4f5255585b5e6164676a6d707376797c7f8285888b8e9194979a9d",
        "c1c8cfd6dde4ebf2f900070e151c232a31383f464d545b626970777e858c939a",
    ],
    host_random: [
        "d4c3b2a1",
        "80858a8f94999ea3a8adb2b7bcc1c6cbd0d5dadfe4e9eef3f8fd02070c11161b20252a2f34393e43484d52575c61666b",
        "99a4afbac5d0dbe6f1fc07121d28333e49545f6a75808b96a1acb7c2cdd8e3ee",
    ],
    messages: [
        "0000000034120001010001010200000000000000000000000000000000000000000000000000000000000100000000000000\
        00000000000000000000000000000000000000000000",
        "01010000341230000201000104030201101316191c1f2225282b2e3134373a3d404346494c4f5255585b5e6164676a6d7073\
        76797c7f8285888b8e9194979a9d4f37445f6c88c5c0b0beba5bee864bb5fd9caa7d7462bff69db49821f346e176d912f887\
        2f9b0d94aaf7258589fe958e41752c189c2e496e9bc096c0f37511c35faedd3e7b3b3e80c6a85b1bb2c4f3086fcc6baf7d41\
        e44b56da1e1d9b3354f4971d732cda32ea1c6c3bffa60e6fc9582d492d58e4de4ea8c10c44b55ff15ab84122b0da913abab8\
        c534c71c0dd0611e735f2fe71e86d5545910aa49e3a96244f1cec04c3487cc3558222c7b68f4426eb1fe1e72c77347d14f2d\
        ce4221feacc96c64f17c938e514ff497bafc98f5ccb6057ac8396a3ade7da6cf6ff6d8bf18d5c6552e2ce4d12eeeb5a7a38a\
        4e611cdb2ff2ce4310e65e58e0cbde4e8dfe91de",
        "010200003412300001000001d4c3b2a1f4810098381da88671550fc8195633d70ceb46e53bea5598c5af79dec0e66b195f98\
        d6f928aa0aa44c7c06f0ef5b17fd80858a8f94999ea3a8adb2b7bcc1c6cbd0d5dadfe4e9eef3f8fd02070c11161b20252a2f\
        34393e43484d52575c61666b51c716609cab28e53adcd581d545fa5df0c3c2c602bd4165fab5f9537daf006da4c45fdcfd7f\
        0af7587a450d726eb1c8f0ea4df582ed54c2f21890e005f0f99844928a48100e64171d287551241c027a95a18625a55ebc48\
        81c2eb3c7471117a4244600b196f7e90e54aacbf9767b7870b721f58840172bfe1c9aaa7ac6bf356064dd8e20cd5844f36a4\
        6d2ec3b0fefe41f1df3ce7179dced8f0f554e589e783b0d09f07f8e1c86e3a00034312b995af6a5fe7d9d488a5c26650824c\
        30e56c579b48bfe4f17b49ffa4de2f2e363b2f95216c38a4b119a5a03388fb6f6e8981ee283c33406625ebd3bd35ab5b0d34\
        422fd99b19b48c5174db0960f7353219701f",
        "01030000341230000100000000000000f049ba5d640540cedb9ee4b0244daac264d1014622b310ff6bb96c75420c1da7e7ac\
        996654bae712af4ceb0b4bb40afd",
        "01040000341200000000000000000000",
    ],
};

const FFDHE3072_SHA512: Golden = Golden {
    hash: HashId::Sha512,
    group: GroupId::Ffdhe3072,
    host_secret: "DHHC-1:03:8P0KFyQxPktYZXJ/jJmms8DN2uf0AQ4bKDVCT1xpdoOQnaq3xNHe6/gFEh8sOUZTYG16h5ShrrvI1eLv/AkWI5LSiJQ=:",
    controller_secret: "DHHC-1:00:AgUICw4RFBcaHSAjJiksLzI1ODs+QURHSk1QU1ZZXF9iZWhrbnF0d3p9gIOGiYyPvWbcaQ==:",
    target_random: [
        "04030201",
        "101316191c1f2225282b2e3134373a3d404346494c4f5255585b5e6164676a6d707376797c7f8285888b8e9194979a9da0a3\
        a6a9acafb2b5b8bbbec1c4c7cacd",
        "c1c8cfd6dde4ebf2f900070e151c232a31383f464d545b626970777e858c939aa1a8afb6bdc4cbd2",
    ],
    host_random: [
        "d4c3b2a1",
        "80858a8f94999ea3a8adb2b7bcc1c6cbd0d5dadfe4e9eef3f8fd02070c11161b20252a2f34393e43484d52575c61666b7075\
        7a7f84898e93989da2a7acb1b6bb",
        "99a4afbac5d0dbe6f1fc07121d28333e49545f6a75808b96a1acb7c2cdd8e3eef9040f1a25303b46",
    ],
    messages: [
        "0000000034120001010001010300000000000000000000000000000000000000000000000000000000000200000000000000\
        00000000000000000000000000000000000000000000",
        "01010000341240000302800104030201101316191c1f2225282b2e3134373a3d404346494c4f5255585b5e6164676a6d7073\
        76797c7f8285888b8e9194979a9da0a3a6a9acafb2b5b8bbbec1c4c7cacd1781bcabd11488ab32d0c9c468a17e9390ac82b4\
        bffa1eb12c80fb52f4ac7ea8db835593cf1b92cb08b7f293da24043b7adc547566caf6a9be6c731bfd98e95840717087fd3d\
        cd3158290fa23c458044e671759989138fdd2862556762dbf8ac980dbb49a46fe5b2f119cd8de0c7cbef7a41152cf1940f40\
        6d205af23b5f7b860b8cf933439c34856004b954be5401549a400539a51b3b94b175533bfd0ea7a239f3a1749d2c56b27844\
        63a7afae6b725f11a212e5ff49bbbdbf73b7fa91b75c16e39ad31a335377c8208fdf1ec0278bc3b86ad629f02653ace58581\
        edd4432ece6fe3a2e75cae61f9ef112978d45f4e2c74ec6d3756520f678cae1c143b5b1e0cf64c1611b7d7f5a4c7c56f437b\
        91c5ed4e024f4546b33d6bd89a5c35fd19951b0f2ead2cfde6c7b08b2dd4d2568a3365bdd7b7da87b07f61dd4ffea001ff61\
        f2fd0e9175737db7fa58f5e5a9b66d1b751fa783eca51f0a1adcf65d9dc88fb45ed4776b05af6f67c1b2a3c3449761427fac\
        bce2f50c60a50cac4dba24a60fbc",
        "010200003412400001008001d4c3b2a1a29448f82cb5b92e32f3455fc6e7e82f3af61e077d66f71af2fa6c21ab8c5fea33fc\
        02516b05799b18be12fb715af5d507819eb5368fd13fba077f3a5636095d80858a8f94999ea3a8adb2b7bcc1c6cbd0d5dadf\
        e4e9eef3f8fd02070c11161b20252a2f34393e43484d52575c61666b70757a7f84898e93989da2a7acb1b6bb14fe4d542ee9\
        2f21f799f7ab7b9db33304f43041a6bc5349741a78788490ac86e39b84f36d5bf3d65c61cc6516fe62986bc7a0d71a565b87\
        dd1cec0aea1e92b63c948e95e6c8efc30218bffbb2b0bf2d274c69e7aed28e47562a3e6ac934584f14553bc798214f1174af\
        f90b87d0003b2c95eb00ce04252b3d5e458107edd6b17946b31a877c61cb19d6406c56cf8bed5e30191539bb4e56fe1fb5bc\
        6d0697a264aaf12f7cd5e3973c0aa4fa25cb3c2cc904fddfb2b9a8db3b3228ee12ae5e40994b079c1176ca4025b6eb563b2b\
        743bbd0dc0f986b586e28e63479d240248567951a64e9c86bb67d4dc2665606409e4b76a4a9a374b6c4097b57b17e560f508\
        80cebca01041f47f65b3408b0bd6243773866c2cc698889a3fd671bd70d2977f3e203efab87a6541c4b7aa9995f5e1d6adc7\
        325eb4d884709247aae4c70aaf13ade680f8140761b194abfdd6667022433b5a543258e18d43e66a132149afa42ed8c9d1ca\
        f76d1d6ae42da785b16e2faaa2b100e65b7087eb135beb54d501cb30",
        "01030000341240000100000000000000d520b0d3b98e88e0e28348206524634e8f9de1729d2aec392b36d1828f5515b0bfd8\
        e38b44cb6ab18e296f87b6867036e4ee70e030dedf41f1f69543d7afd74d",
        "01040000341200000000000000000000",
    ],
};
