//! Tables and figures anew from what a run measured: `cargo run -p bench --example render -- DIRECTORY`, which has a
//! `figures.json`. For when only the words change.

use std::error::Error;
use std::path::Path;

use bench::report::Report;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("say the directory of figures.json")?;
    let text = std::fs::read_to_string(Path::new(&directory).join("figures.json"))?;
    let report: Report = serde_json::from_str(&text)?;
    report.write(Path::new(&directory))?;
    Ok(())
}
