//! Images come, change and go. All of it is the store's and may wait for a disk: it is done on
//! threads that may.

use super::{Registry, Tables};
use crate::plane::DiskHandle;
use api::{
    Error, ErrorCode, Export, Image, ImageCheck, ImageConfig, ImageName, Import, Name, Resize,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use store::{Catalog, Digest, StoreError, Usage};
use tracing::{info, warn};

/// Who is told how many bytes are done, and of how many, and says whether to go on.
pub(crate) type Tell = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send>;

impl Registry {
    /// Does something with the catalog, on a thread that may wait.
    async fn with_images<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Catalog) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let catalog = self.catalog.clone();
        match tokio::task::spawn_blocking(move || work(&catalog)).await {
            Ok(result) => result.map_err(|error| refusal(&error)),
            Err(error) => Err(Error::new(ErrorCode::Host, format!("that failed: {error}"))),
        }
    }

    /// All images and snapshots, by name.
    pub(crate) async fn images(&self) -> Result<Vec<Image>, Error> {
        let list = self.with_images(Catalog::list).await?;
        let whole = |(_, found): (ImageName, Result<store::Summary, StoreError>)| {
            // `image show` says it to whoever asks for that one.
            found.inspect_err(|error| warn!("{error}")).ok().map(view)
        };
        Ok(list.into_iter().filter_map(whole).collect())
    }

    /// All about one image.
    pub(crate) async fn image(&self, name: &ImageName) -> Result<Image, Error> {
        let name = name.clone();
        let details = self.with_images(move |catalog| catalog.show(&name)).await?;
        Ok(Image {
            chain: Some(details.chain.into_iter().map(|(name, _)| name).collect()),
            clones: Some(details.clones),
            used: match details.usage {
                Usage::Free => None,
                Usage::Readers => Some("by readers".to_owned()),
                Usage::Writer(Some(owner)) => Some(format!("by {owner}")),
                Usage::Writer(None) => Some("by a writer".to_owned()),
                Usage::Qemu => Some("by a QEMU that writes".to_owned()),
            },
            ..view(details.summary)
        })
    }

    /// Makes an image, empty or a clone.
    pub(crate) async fn add_image(
        &self,
        name: &ImageName,
        config: ImageConfig,
    ) -> Result<Image, Error> {
        let ImageConfig { size, format, clone_of } = config;
        let invalid = |text: &str| Err(Error::new(ErrorCode::Invalid, text));
        let new = name.clone();
        match (size, clone_of) {
            (Some(size), None) => {
                let format = format.unwrap_or(api::ImageFormat::Raw);
                self.with_images(move |images| images.create(&new, size.bytes(), format)).await?;
            }
            (None, Some(base)) if format.is_none_or(|format| format == api::ImageFormat::Qcow2) => {
                self.with_images(move |images| images.clone_image(&base, &new)).await?;
            }
            (None, Some(_)) => return invalid("format: a clone is qcow2"),
            (None, None) => return invalid("size: an empty image needs one"),
            (Some(_), Some(_)) => return invalid("size: a clone has that of its base"),
        }
        info!("image {name} made");
        self.image(name).await
    }

    /// Removes an image.
    pub(crate) async fn remove_image(&self, name: &ImageName) -> Result<(), Error> {
        // A disk that cannot be opened just now would not find it any more.
        let disks = self.tables.read().disks_of(name);
        if let Some(disk) = disks.first() {
            let message = format!("image {name} is that of disk {disk}");
            return Err(Error::new(ErrorCode::InUse, message)
                .hint(format!("`hayate disk del {disk}` first")));
        }
        let gone = name.clone();
        self.with_images(move |catalog| catalog.delete(&gone)).await?;
        info!("image {name} removed");
        Ok(())
    }

    /// Keeps what an image is now as `NAME@SNAPSHOT`. The guest of a disk that uses it waits a
    /// moment.
    pub(crate) async fn snapshot_image(
        &self,
        name: &ImageName,
        snapshot: &Name,
    ) -> Result<Image, Error> {
        let _changing = self.changing.lock().await;
        let (of, snapshot) = (name.clone(), snapshot.clone());
        let made = self.with_images(move |images| images.snapshot(&of, snapshot.as_str()));
        let disk = self.tables.read().writer_of(name).map(|(disk, ..)| disk);
        let made = match disk {
            Some(disk) => self.without_image(&disk, made).await?,
            None => made.await?,
        };
        info!("snapshot {made} made");
        self.image(&made).await
    }

    /// Gives an image another size; the guest of a disk that uses it is told.
    pub(crate) async fn resize_image(
        &self,
        name: &ImageName,
        wanted: Resize,
    ) -> Result<Image, Error> {
        let Resize { size, shrink } = wanted;
        let size = size.bytes();
        let _changing = self.changing.lock().await;
        let open = self.tables.read().writer_of(name);
        if let Some((disk, handle, image)) = open {
            if size < image.size() {
                let message = format!("image {name} is that of disk {disk}, which cannot shrink");
                return Err(Error::new(ErrorCode::InUse, message)
                    .hint(format!("`hayate disk del {disk}` first")));
            }
            self.with_images(move |_| image.resize(size)).await?;
            self.plane.resize_disk(handle, size).map_err(|error| super::host(&error))?;
        } else {
            let name = name.clone();
            self.with_images(move |images| images.resize(&name, size, shrink)).await?;
        }
        info!("image {name} has {size} bytes now");
        self.image(name).await
    }

    /// Makes an image from a file. `tell` hears how far it is.
    pub(crate) async fn import_image(
        &self,
        name: &ImageName,
        import: Import,
        mut tell: Tell,
    ) -> Result<Image, Error> {
        let Import { file, format, image_format, sha256, checksum } = import;
        let digest = match (sha256, checksum) {
            (Some(expected), _) => Digest::Expect(expected),
            (None, true) => Digest::Compute,
            (None, false) => Digest::None,
        };
        let how = store::Import { source: format, format: image_format.unwrap_or(format), digest };
        let new = name.clone();
        self.with_images(move |images| {
            images.import(&file, &new, &how, &mut |at| tell(at.done, at.total))
        })
        .await?;
        info!("image {name} imported");
        self.image(name).await
    }

    /// Makes a file from an image.
    pub(crate) async fn export_image(
        &self,
        name: &ImageName,
        export: Export,
        mut tell: Tell,
    ) -> Result<Image, Error> {
        let Export { file, format, force } = export;
        let format = format.unwrap_or(api::ImageFormat::Raw);
        let (how, from) = (store::Export { format, force }, name.clone());
        self.with_images(move |images| {
            images.export(&from, &file, how, &mut |at| tell(at.done, at.total))
        })
        .await?;
        info!("image {name} exported");
        self.image(name).await
    }

    /// Looks whether an image is whole.
    pub(crate) async fn check_image(&self, name: &ImageName) -> Result<ImageCheck, Error> {
        let name = name.clone();
        let report = self.with_images(move |images| images.check(&name)).await?;
        if !report.is_sound() {
            warn!("an image is damaged: {}", report.told.join("; "));
        }
        Ok(ImageCheck {
            sound: report.is_sound(),
            leaked_clusters: report.leaks,
            allocated: report.allocated,
            errors: report.told,
        })
    }
}

impl Tables {
    /// Names of the disks whose image this is.
    fn disks_of(&self, image: &ImageName) -> Vec<Name> {
        let disks = self.disks.iter().filter(|(_, disk)| disk.config.image.local() == Some(image));
        disks.map(|(name, _)| name.clone()).collect()
    }

    /// The open disk that writes this image.
    fn writer_of(&self, image: &ImageName) -> Option<(Name, DiskHandle, Arc<store::Image>)> {
        self.disks.iter().find_map(|(name, disk)| {
            let open = disk.open.as_ref().ok()?;
            let writes = disk.config.image.local() == Some(image) && !disk.config.readonly;
            let image = open.image.local().filter(|_| writes)?;
            Some((name.clone(), open.handle, Arc::clone(image)))
        })
    }
}

fn view(summary: store::Summary) -> Image {
    let store::Summary { name, format, size, allocated, backing, created, sha256 } = summary;
    let (chain, clones, used) = (None, None, None);
    Image { name, format, size, allocated, backing, created, sha256, chain, clones, used }
}

/// What the store refused, as a client sees it.
pub(super) fn refusal(error: &StoreError) -> Error {
    let code = match error {
        StoreError::NotFound(_) => ErrorCode::NotFound,
        StoreError::Exists(_) | StoreError::FileExists(_) => ErrorCode::Exists,
        StoreError::InUse { .. } | StoreError::HasClones { .. } => ErrorCode::InUse,
        StoreError::Io { .. } | StoreError::Damaged { .. } => ErrorCode::Host,
        _ => ErrorCode::Invalid,
    };
    let refusal = Error::new(code, error.to_string());
    match error {
        StoreError::NotFound(_) => refusal.hint("`hayate image list` shows what there is"),
        StoreError::HasClones { .. } => {
            refusal.hint("`hayate image clone` makes another one to write to")
        }
        _ => refusal,
    }
}
