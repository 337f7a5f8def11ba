//! `hayate fabric`.

use super::args::{FabricCommand, Output};
use super::fail::Failure;
use super::out;
use crate::render::Table;
use fabric::{Place, Provider};
use serde::Serialize;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

/// What there is, as `hayate fabric list --json` prints it.
#[derive(Serialize)]
struct List {
    /// Of libfabric, major and minor; nothing: there is none, or this was built without.
    libfabric: Option<String>,
    /// The file it was loaded from.
    library: Option<PathBuf>,
    providers: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    usable: bool,
    /// Why it is not.
    reason: Option<String>,
    places: Vec<ListedPlace>,
}

#[derive(Serialize)]
struct ListedPlace {
    fabric: String,
    domain: String,
    format: &'static str,
    address: Option<IpAddr>,
}

pub(super) fn command(command: &FabricCommand) -> Result<(), Failure> {
    match command {
        FabricCommand::List(output) => list(*output),
    }
}

fn list(output: Output) -> Result<(), Failure> {
    let all = List {
        libfabric: fabric::version().map(|(major, minor)| format!("{major}.{minor}")),
        library: fabric::library(),
        providers: fabric::providers().into_iter().map(listed).collect(),
    };
    if output.json { out::json(&all) } else { out::text(&text(&all)) }
}

fn listed(provider: Provider) -> Listed {
    let Provider { kind, places, missing } = provider;
    let place = |Place { fabric, domain, format, address }: Place| ListedPlace {
        fabric,
        domain,
        format,
        address,
    };
    Listed {
        name: kind.name(),
        usable: missing.is_none(),
        reason: missing,
        places: places.into_iter().map(place).collect(),
    }
}

fn text(all: &List) -> String {
    let mut table = Table::new(["PROVIDER", "DOMAIN", "FORMAT", "ADDRESS", "FABRIC"]);
    for provider in &all.providers {
        for place in &provider.places {
            table.row([
                provider.name.to_owned(),
                place.domain.clone(),
                place.format.to_owned(),
                place.address.map(|address| address.to_string()).unwrap_or_default(),
                place.fabric.clone(),
            ]);
        }
    }
    let mut text = match (&all.libfabric, &all.library) {
        (Some(version), Some(library)) => format!("libfabric {version} ({})\n", library.display()),
        _ => String::new(),
    };
    if all.providers.iter().any(|provider| !provider.places.is_empty()) {
        let _ = write!(text, "\n{table}\n");
    }
    for provider in &all.providers {
        if let Some(reason) = &provider.reason {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}: not usable: {reason}", provider.name);
        }
    }
    text
}
