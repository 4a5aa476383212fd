//! A place in the tokens of a line, and what both dialects have in common there.

use super::token::{Kind, Token};
use super::{Fault, Target, Unreadable};
use crate::isa::{Operand, Register, Width};

/// A place in the tokens of a line.
pub(super) struct Cursor<'a, 'b> {
    tokens: &'b [Token<'a>],
    /// The column behind the last token.
    end: usize,
}

impl<'a, 'b> Cursor<'a, 'b> {
    pub(super) fn new(tokens: &'b [Token<'a>]) -> Self {
        let end = tokens.last().map_or(1, |last| last.column + last.text.len());
        Self { tokens, end }
    }

    /// The column of the next token.
    pub(super) fn column(&self) -> usize {
        self.tokens.first().map_or(self.end, |token| token.column)
    }

    pub(super) fn peek(&self) -> Option<Kind<'a>> {
        self.tokens.first().map(|token| token.kind)
    }

    /// What comes behind the next token.
    pub(super) fn peek_second(&self) -> Option<Kind<'a>> {
        self.tokens.get(1).map(|token| token.kind)
    }

    /// What comes behind that.
    pub(super) fn peek_third(&self) -> Option<Kind<'a>> {
        self.tokens.get(2).map(|token| token.kind)
    }

    pub(super) fn skip(&mut self) {
        self.tokens = self.tokens.get(1..).unwrap_or(&[]);
    }

    /// That something else should stand here.
    pub(super) fn expected(&self, expected: &'static str) -> Fault {
        let found = self.tokens.first().map_or("the end of the line", |token| token.text).into();
        Fault { column: self.column(), what: Unreadable::Expected { expected, found } }
    }

    /// Takes a sign if it is next.
    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Kind::Sign(next)) if next == sign);
        if is_next {
            self.skip();
        }
        is_next
    }

    /// Takes a sign that has to be next.
    pub(super) fn sign(&mut self, sign: &'static str) -> Result<(), Fault> {
        if self.eat(sign) { Ok(()) } else { Err(self.expected(sign)) }
    }

    /// Takes a certain word if it is next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Kind::Word(next)) if next == word);
        if is_next {
            self.skip();
        }
        is_next
    }

    /// Takes a word.
    pub(super) fn word(&mut self, expected: &'static str) -> Result<&'a str, Fault> {
        let Some(Kind::Word(word)) = self.peek() else { return Err(self.expected(expected)) };
        self.skip();
        Ok(word)
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<(), Fault> {
        if self.tokens.is_empty() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    /// Whether a register is next.
    pub(super) fn is_register(&self) -> bool {
        matches!(self.peek(), Some(Kind::Word(word)) if is_register(word))
    }

    /// Takes a register, and how much of it is meant.
    pub(super) fn any_register(&mut self) -> Result<(Register, Width), Fault> {
        let Some(Kind::Word(word)) = self.peek().filter(|_| self.is_register()) else {
            return Err(self.expected("a register"));
        };
        let missing = || Fault { column: self.column(), what: Unreadable::Register(word.into()) };
        let (width, number) = match word.split_at_checked(1) {
            Some(("r", number)) => (Width::W64, number),
            Some((_, number)) => (Width::W32, number),
            None => return Err(missing()),
        };
        let register = number.parse().ok().filter(|_| number.len() == 1 || !number.starts_with('0'));
        let register = register.and_then(Register::new).ok_or_else(missing)?;
        self.skip();
        Ok((register, width))
    }

    /// Takes a register of a width.
    pub(super) fn register(&mut self, width: Width) -> Result<Register, Fault> {
        let other = self.expected(match width {
            Width::W64 => "a register of 64 bits, such as r1",
            Width::W32 => "a register of 32 bits, such as w1",
        });
        let (register, found) = self.any_register()?;
        if found == width { Ok(register) } else { Err(other) }
    }

    /// Takes a register that is known already.
    pub(super) fn same_register(&mut self, register: Register, width: Width) -> Result<(), Fault> {
        let other = self.expected("the same register as before");
        if self.register(width)? == register { Ok(()) } else { Err(other) }
    }

    /// Takes a register of a width, or a number of 32 bits.
    pub(super) fn operand(&mut self, width: Width) -> Result<Operand, Fault> {
        if self.is_register() {
            return self.register(width).map(Operand::Register);
        }
        self.immediate().map(Operand::Immediate)
    }

    /// Takes a number of 32 bits. One that is written with `0x` may have all its bits set, others have a sign.
    pub(super) fn immediate(&mut self) -> Result<i32, Fault> {
        let column = self.column();
        let (number, is_hex) = self.number("a number or a register")?;
        let max = if is_hex { u32::MAX.into() } else { i32::MAX.into() };
        let number = in_range("an immediate", number, i32::MIN.into(), max, column)?;
        // The bits are what is meant.
        Ok(number as i32)
    }

    /// Takes a number of 64 bits.
    pub(super) fn wide(&mut self) -> Result<u64, Fault> {
        let column = self.column();
        let (number, _) = self.number("a number")?;
        in_range("a wide number", number, i64::MIN.into(), u64::MAX.into(), column)
            .map(|number| number as u64)
    }

    /// Takes a number of 32 bits without a sign.
    pub(super) fn unsigned(&mut self, what: &'static str) -> Result<u32, Fault> {
        let column = self.column();
        let (number, _) = self.number("a number")?;
        in_range(what, number, 0, u32::MAX.into(), column).map(|number| number as u32)
    }

    /// Takes a number with its sign.
    fn number(&mut self, expected: &'static str) -> Result<(i128, bool), Fault> {
        let is_negative =
            matches!((self.peek(), self.peek_second()), (Some(Kind::Sign("-")), Some(Kind::Number { .. })));
        if is_negative {
            self.skip();
        }
        let Some(Kind::Number { value, is_hex }) = self.peek() else { return Err(self.expected(expected)) };
        self.skip();
        let value = i128::from(value);
        Ok((if is_negative { -value } else { value }, is_hex))
    }

    /// Takes a base register and, perhaps, what is added to it, up to a closing sign.
    pub(super) fn address(&mut self, close: &'static str) -> Result<(Register, i16), Fault> {
        let base = self.register(Width::W64)?;
        let column = self.column();
        let is_negative = self.eat("-");
        let mut offset = 0;
        if is_negative || self.eat("+") {
            let (number, _) = self.number("a number")?;
            let number = if is_negative { -number } else { number };
            offset = in_range("an offset", number, i16::MIN.into(), i16::MAX.into(), column)? as i16;
        }
        if !self.eat(close) {
            return Err(self.expected(if close == "]" { "+, - or ]" } else { "+, - or )" }));
        }
        Ok((base, offset))
    }

    /// Takes a target: a label, or how many slots lie between. Behind it a disassembler may have put a name.
    pub(super) fn target(&mut self) -> Result<Target<'a>, Fault> {
        let column = self.column();
        let is_negative = self.eat("-");
        if is_negative || self.eat("+") {
            let Some(Kind::Number { value, .. }) = self.peek() else { return Err(self.expected("a number")) };
            self.skip();
            let distance = if is_negative { -i128::from(value) } else { value.into() };
            let distance = in_range("a distance", distance, i32::MIN.into(), i32::MAX.into(), column)?;
            self.remark();
            return Ok(Target::Relative(distance as i64, column));
        }
        Ok(Target::Label(self.word("a label, or a distance with its sign")?, column))
    }

    /// Skips a name in angle brackets.
    fn remark(&mut self) {
        if let [open, .., close] = self.tokens
            && (open.kind, close.kind) == (Kind::Sign("<"), Kind::Sign(">"))
        {
            self.tokens = &[];
        }
    }
}

/// Whether a word can only be meant as a register.
pub(super) fn is_register(word: &str) -> bool {
    word.strip_prefix(['r', 'w']).is_some_and(|number| {
        !number.is_empty() && number.len() <= 3 && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn in_range(what: &'static str, number: i128, min: i128, max: i128, column: usize) -> Result<i128, Fault> {
    if (min..=max).contains(&number) {
        return Ok(number);
    }
    Err(Fault { column, what: Unreadable::Range { what, number, min, max } })
}
