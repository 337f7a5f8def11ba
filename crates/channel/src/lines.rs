//! A stream cut into lines.

use api::channel::LINE_MAX;

/// A line without its newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// It is longer than [`LINE_MAX`]; the rest of it is skipped.
    TooLong,
}

/// Holds the beginning of a line until its end comes: [`LINE_MAX`] at most.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
    skipping: bool,
    /// `begun` was given out.
    given: bool,
}

impl Lines {
    /// The next line of what came before and `input`, which is moved on behind it. `None`: there is no
    /// more, and `input` is empty. Empty lines are left out.
    pub fn next<'a>(&'a mut self, input: &mut &[u8]) -> Option<Line<'a>> {
        if std::mem::take(&mut self.given) {
            self.begun.clear();
        }
        while !input.is_empty() {
            let newline = input.iter().position(|byte| *byte == b'\n');
            let (part, rest) = input.split_at(newline.unwrap_or(input.len()));
            *input = rest.get(1..).unwrap_or_default();
            if self.skipping {
                self.skipping = newline.is_none();
                continue;
            }
            if self.begun.len() + part.len() >= LINE_MAX {
                self.begun = Vec::new();
                self.skipping = newline.is_none();
                return Some(Line::TooLong);
            }
            self.begun.extend_from_slice(part);
            if newline.is_some() {
                if self.begun.trim_ascii().is_empty() {
                    self.begun.clear();
                    continue;
                }
                self.given = true;
                return Some(Line::Whole(&self.begun));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in pieces {
            let mut input = *piece;
            while let Some(line) = lines.next(&mut input) {
                found.push(match line {
                    Line::Whole(text) => Some(text.to_owned()),
                    Line::TooLong => None,
                });
            }
            assert!(input.is_empty());
        }
        assert!(lines.begun.len() < LINE_MAX);
        found
    }

    #[test]
    fn pieces_make_the_same_lines() {
        let text = b"one\n\n \r\ntwo\nthree\nhalf";
        let whole = cut(&[text]);
        assert_eq!(whole, ["one", "two", "three"].map(|line| Some(line.into())));
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(cut(&bytes), whole);
    }

    #[test]
    fn long_lines_are_skipped_to_their_end() {
        let long = vec![b'x'; 3 * LINE_MAX];
        let longest = vec![b'y'; LINE_MAX - 1];
        let all = cut(&[&long, b"more\n", &longest, b"\nnext\n", &longest, b"y\nlast\n"]);
        assert_eq!(all, [None, Some(longest), Some(b"next".into()), None, Some(b"last".into())]);
        assert_eq!(cut(&[&[&long[..], b"\nnext\n"].concat()]), [None, Some(b"next".into())]);
    }
}
