//! Tables without borders: easy to read, easy to cut.

use super::units;
use api::Port;
use comfy_table::{CellAlignment, presets};
use std::fmt;

/// A table of texts under a heading.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// A table with these columns; a name that starts with `>` makes a column of numbers.
    pub(crate) fn new<const N: usize>(names: [&str; N]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(names.map(|name| name.trim_start_matches('>')));
        for (column, name) in table.column_iter_mut().zip(names) {
            column.set_padding((0, 2));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    /// Adds a row; an empty text is shown as `-`.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Names and values, one a line.
pub(crate) fn facts(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = lines.iter().map(|(name, value)| {
        let value = if value.is_empty() { "-" } else { value };
        format!("{name:width$}  {value}\n")
    });
    lines.collect()
}

/// Ports, one a line.
pub(crate) fn port_table(ports: &[Port]) -> String {
    let mut table = Table::new([
        "PORT",
        "KIND",
        "NETWORK",
        "VM",
        "STATE",
        ">SINCE",
        ">FROM PORT",
        ">BYTES",
        ">TO PORT",
        ">BYTES",
        "DROPS",
    ]);
    for port in ports {
        table.row([
            port.name.to_string(),
            port.kind.as_str().to_owned(),
            format!("{}{}", port.network, units::vlans(port)),
            units::maybe(port.vm.as_ref()),
            port.state.as_str().to_owned(),
            units::age(port.since.age()),
            units::number(port.from_port.frames),
            units::bytes(port.from_port.bytes),
            units::number(port.to_port.frames),
            units::bytes(port.to_port.bytes),
            units::drops(&port.drops),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let mut table = Table::new(["NAME", ">N"]);
        table.row(["a".into(), "1".into()]);
        table.row(["long-name".into(), "1000".into()]);
        table.row([String::new(), String::new()]);
        assert_eq!(
            table.to_string(),
            "NAME          N\na             1\nlong-name  1000\n-             -\n"
        );
    }

    #[test]
    fn facts_line_up() {
        let text = facts(&[("a", "1".into()), ("longer", String::new())]);
        assert_eq!(text, "a       1\nlonger  -\n");
    }
}
