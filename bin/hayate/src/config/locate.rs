//! Finds the place of a mistake in a TOML text and shows it.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// A text and the name of the file it is from.
pub(super) struct Source<'t> {
    file: &'t Path,
    text: &'t str,
}

impl<'t> Source<'t> {
    pub(super) fn new(file: &'t Path, text: &'t str) -> Self {
        Self { file, text }
    }

    /// Bytes of the value that `keys` lead to; if it is not in the text, of the table that lacks
    /// it.
    pub(super) fn span_of(&self, keys: &[String]) -> Range<usize> {
        let Ok(root) = DeTable::parse(self.text) else { return 0..0 };
        let mut span = 0..0;
        let mut table = root.get_ref();
        for key in keys {
            let Some((found, value)) = table.iter().find(|(name, _)| name.get_ref() == key) else {
                return span;
            };
            match value.get_ref() {
                DeValue::Table(inner) => {
                    span = found.span();
                    table = inner;
                }
                _ => return value.span(),
            }
        }
        span
    }

    /// `FILE:LINE:COLUMN: message`, and the line with the place marked.
    pub(super) fn report(&self, span: Range<usize>, message: &str) -> String {
        let start = self.boundary(span.start);
        let before = self.text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = self.text.get(line_start..start).unwrap_or_default().chars().count();
        let shown = self.text.get(line_start..).unwrap_or_default();
        let shown = shown.lines().next().unwrap_or_default();
        let marked = self.text.get(start..self.boundary(span.end.max(start))).unwrap_or_default();
        let marked = marked.lines().next().unwrap_or_default().chars().count().max(1);

        let mut report =
            format!("{}:{line}:{}: {}", self.file.display(), column + 1, message.trim_end());
        let gutter = " ".repeat(line.to_string().len());
        // Writing to a String cannot fail.
        let _ = write!(
            report,
            "\n {gutter} |\n {line} | {shown}\n {gutter} | {}{}",
            " ".repeat(column),
            "^".repeat(marked)
        );
        report
    }

    /// The nearest place at or before `at` that is not inside a character.
    fn boundary(&self, at: usize) -> usize {
        (0..=at.min(self.text.len())).rev().find(|i| self.text.is_char_boundary(*i)).unwrap_or(0)
    }
}
