//! Tables of operands and results, a line each, made into programs that have the operands in registers, in the instruction, in
//! one register twice, in memory or on the stack.

use crate::case::{Case, read_number};

/// A line `name operands = results`.
struct Line<'a> {
    at: String,
    name: &'a str,
    operands: Vec<u64>,
    results: Vec<&'a str>,
}

fn lines<'a>(file: &str, text: &'a str) -> Vec<Line<'a>> {
    let bare = |line: &'a str| line.split('#').next().unwrap_or_default().trim();
    let lines =
        (1..).zip(text.lines()).map(|(at, line)| (at, bare(line))).filter(|(_, line)| !line.is_empty());
    lines
        .map(|(at, line)| {
            let (left, right) = line.split_once('=').unwrap_or_else(|| panic!("{file}:{at} has no result"));
            let mut words = left.split_whitespace();
            let name = words.next().unwrap_or_default();
            let operands = words.map(|word| read_number(word).unwrap()).collect();
            Line {
                at: format!("{file}:{at} {line}"),
                name,
                operands,
                results: right.split_whitespace().collect(),
            }
        })
        .collect()
}

/// The number as an immediate, if the instruction extends it to the same.
fn immediate(name: &str, operand: u64) -> Option<i32> {
    let low = operand as u32 as i32;
    let is_same =
        if name.ends_with("32") { operand <= u32::MAX.into() } else { i64::from(low) as u64 == operand };
    is_same.then_some(low)
}

/// `op left right = result`.
pub(crate) fn binary(file: &str, text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for Line { at, name, operands, results } in lines(file, text) {
        let (&[left, right], [result]) = (&operands[..], &results[..]) else { panic!("{at}") };
        let result = read_number(result).unwrap();
        let mut add = |how: &str, asm| cases.push(Case::of_text(format!("{at} ({how})"), asm, result));
        add(
            "registers",
            format!("lddw %r3, {left:#x}\nlddw %r4, {right:#x}\n{name} %r3, %r4\nmov %r0, %r3\nexit"),
        );
        add("r0", format!("lddw %r0, {left:#x}\nlddw %r9, {right:#x}\n{name} %r0, %r9\nexit"));
        if let Some(number) = immediate(name, right) {
            add("immediate", format!("lddw %r0, {left:#x}\n{name} %r0, {number}\nexit"));
        }
        if left == right {
            add("one register", format!("lddw %r0, {left:#x}\n{name} %r0, %r0\nexit"));
        }
    }
    cases
}

/// `op operand = result`, where moves have two registers, and the others one.
pub(crate) fn unary(file: &str, text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for Line { at, name, operands, results } in lines(file, text) {
        let (&[operand], [result]) = (&operands[..], &results[..]) else { panic!("{at}") };
        let result = read_number(result).unwrap();
        let mut add = |how: &str, asm| cases.push(Case::of_text(format!("{at} ({how})"), asm, result));
        if name.starts_with("mov") {
            add("registers", format!("lddw %r0, -1\nlddw %r7, {operand:#x}\n{name} %r0, %r7\nexit"));
            add("one register", format!("lddw %r0, {operand:#x}\n{name} %r0, %r0\nexit"));
            // The operand is as it was.
            let asm = format!("lddw %r0, {operand:#x}\n{name} %r5, %r0\nexit");
            cases.push(Case::of_text(format!("{at} (source)"), asm, operand));
        } else {
            add("register", format!("lddw %r0, {operand:#x}\n{name} %r0\nexit"));
        }
    }
    cases
}

/// `test left right = yes` or `no`.
pub(crate) fn branches(file: &str, text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for Line { at, name, operands, results } in lines(file, text) {
        let (&[left, right], [answer]) = (&operands[..], &results[..]) else { panic!("{at}") };
        let result = match *answer {
            "yes" => 1,
            "no" => 0,
            _ => panic!("{at}"),
        };
        let mut add = |how: &str, before: String, second: String| {
            let asm = format!(
                "lddw %r3, {left:#x}\n{before}{name} %r3, {second}, there\nmov %r0, 0\nexit\nthere:\nmov %r0, 1\nexit"
            );
            cases.push(Case::of_text(format!("{at} ({how})"), asm, result));
        };
        add("registers", format!("lddw %r4, {right:#x}\n"), "%r4".into());
        if let Some(number) = immediate(name, right) {
            add("immediate", String::new(), number.to_string());
        }
        if left == right {
            add("one register", String::new(), "%r3".into());
        }
    }
    cases
}

/// `op memory operand = memory register`, or `cmpxchg memory r0 operand = memory r0`: eight bytes of memory in any case, of
/// which an operation of 32 bits touches the lower four.
pub(crate) fn atomics(file: &str, text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for Line { at, name, operands, results } in lines(file, text) {
        let results: Vec<u64> = results.iter().map(|word| read_number(word).unwrap()).collect();
        let (&[memory_after, register_after], Some(&memory)) = (&results[..], operands.first()) else {
            panic!("{at}")
        };
        let (r0, operand) = match operands[..] {
            [_, operand] => (0, operand),
            [_, r0, operand] => (r0, operand),
            _ => panic!("{at}"),
        };
        let (name, fetch) = name.strip_prefix("fetch_").map_or((name, ""), |name| (name, "fetch "));
        let fetched = if name.starts_with("cmpxchg") { "%r0" } else { "%r3" };
        for address in ["%r1+8", "%r10-16"] {
            let begin = format!(
                "lddw %r0, {r0:#x}\nlddw %r4, {memory:#x}\nlddw %r3, {operand:#x}\nstxdw [{address}], %r4\n\
                 lock {fetch}{name} [{address}], %r3\n"
            );
            let memory_is = Case::of_text(
                format!("{at} ({address}, memory)"),
                format!("{begin}ldxdw %r0, [{address}]\nexit"),
                memory_after,
            );
            let register_is = Case::of_text(
                format!("{at} ({address}, register)"),
                format!("{begin}mov %r0, {fetched}\nexit"),
                register_after,
            );
            cases.extend([memory_is, register_is].map(|case| Case { memory: vec![0; 24], ..case }));
        }
    }
    cases
}
