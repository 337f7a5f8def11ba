//! The images of a directory. A daemon of the same host may use the same one: who has an image open is said by
//! locks.

use super::Backend;
use crate::plane::image_bytes;
use api::{DiskCache, ImageName};
use dataplane::store_control::{Listed, Refused, Why};
use dataplane::{OpenImage, Peer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Access, Cache, Catalog, Owner, StoreError};
use tracing::{error, warn};

/// The images of a directory.
pub(super) struct Directory {
    catalog: Catalog,
    cache: Cache,
}

impl Directory {
    /// The directory is made if need be.
    pub(super) fn open(dir: &Path, cache: DiskCache) -> Result<Directory, StoreError> {
        let cache = match cache {
            DiskCache::Direct => Cache::Direct,
            DiskCache::Host => Cache::PageCache,
        };
        Ok(Directory { catalog: Catalog::open(dir)?, cache })
    }
}

impl Backend for Directory {
    fn name(&self) -> String {
        self.catalog.dir().display().to_string()
    }

    fn local(&self, port: u16) -> PathBuf {
        // No image has a name that begins with a dot.
        self.catalog.dir().join(format!(".store-{port}.sock"))
    }

    fn open(&self, name: &ImageName, write: bool, client: &Peer) -> Result<OpenImage, Refused> {
        let owner = Owner::new(self.catalog.dir(), &client.name);
        let access = if write { Access::Write } else { Access::Read };
        let opened = self.catalog.open_image(name, access, &owner, self.cache);
        let image = Arc::new(opened.map_err(|error| refusal(name, &error))?);
        let epoch = self.catalog.epoch(name, write).map_err(|error| refusal(name, &error))?;
        Ok(OpenImage {
            image: image_bytes(&image),
            size: image.size(),
            epoch,
            keep: Box::new(image),
        })
    }

    fn list(&self) -> Result<Vec<Listed>, Refused> {
        let all = self.catalog.list().map_err(|error| {
            error!("the images cannot be listed: {error}");
            Refused { why: Why::Failed, message: "the images cannot be listed".to_owned() }
        })?;
        let whole = |(image, found): (ImageName, Result<store::Summary, StoreError>)| {
            let summary = found.inspect_err(|error| warn!("{error}")).ok()?;
            Some(Listed { image, size: summary.size })
        };
        Ok(all.into_iter().filter_map(whole).collect())
    }
}

/// What a client is told.
fn refusal(name: &ImageName, error: &StoreError) -> Refused {
    let why = match error {
        StoreError::InUse { owner: Some(owner), .. } => {
            let message = format!("image {name} is in use by {}", owner.disk);
            return Refused { why: Why::InUse, message };
        }
        StoreError::NotFound(_) => Why::NoSuchImage,
        StoreError::InUse { .. } | StoreError::HasClones { .. } => Why::InUse,
        StoreError::Snapshot(_) => Why::Forbidden,
        _ => return super::failed(name, error),
    };
    Refused { why, message: error.to_string() }
}
