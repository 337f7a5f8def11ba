//! The description of the interface, without a daemon.

use super::openapi;
use utoipa::openapi::PathItem;

#[test]
fn every_path_is_versioned_tagged_and_explained() {
    let document = openapi();
    assert!(document.paths.paths.len() >= 13);
    for (path, item) in &document.paths.paths {
        assert!(path.starts_with("/v1/"), "{path}");
        for operation in operations(item) {
            assert!(operation.tags.as_ref().is_some_and(|tags| tags.len() == 1), "{path}");
            assert!(operation.summary.is_some(), "{path}");
            assert!(operation.operation_id.is_some(), "{path}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let text = serde_json::to_string(&openapi()).unwrap();
    let schemas = openapi().components.unwrap().schemas;
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name}");
    }
}

fn operations(item: &PathItem) -> impl Iterator<Item = &utoipa::openapi::path::Operation> {
    [&item.get, &item.put, &item.delete, &item.post, &item.patch].into_iter().flatten()
}
