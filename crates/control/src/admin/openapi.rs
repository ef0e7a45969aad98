//! `GET /openapi.json`: the description of the API.

use super::ControlPlane;
use super::problem::ProblemBody;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{Components, Content, InfoBuilder, OpenApi, RefOr, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};

const DESCRIPTION: &str = "The control plane of a Tollgate node. Changes need a token with the role `operate`, \
                           everything else but health, metrics and this description any token.";

/// The description of the API.
#[utoipa::path(get, path = "/openapi.json", tag = "health", security(()),
    responses((status = 200, body = serde_json::Value)))]
pub(super) async fn show_openapi(State(plane): State<Arc<ControlPlane>>) -> Json<OpenApi> {
    Json(plane.openapi.clone())
}

/// Adds what all endpoints have in common: title, security, and the errors that every one of them may answer.
pub(super) fn complete(mut openapi: OpenApi) -> OpenApi {
    openapi.info = InfoBuilder::new().title("Tollgate").version("1").description(Some(DESCRIPTION)).build();
    let components = openapi.components.get_or_insert_with(Components::new);
    components.schemas.insert(ProblemBody::name().into_owned(), ProblemBody::schema());
    let mut nested = Vec::new();
    ProblemBody::schemas(&mut nested);
    components.schemas.extend(nested);
    components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    let cookie = ApiKey::Cookie(ApiKeyValue::new(super::access::SESSION_COOKIE));
    components.add_security_scheme("session", SecurityScheme::ApiKey(cookie));
    openapi.security = Some(vec![requirement("token"), requirement("session")]);
    for item in openapi.paths.paths.values_mut() {
        operations(item).for_each(add_common_errors);
    }
    openapi
}

fn requirement(scheme: &str) -> SecurityRequirement {
    SecurityRequirement::new(scheme, [] as [&str; 0])
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

fn add_common_errors(operation: &mut Operation) {
    let mut add = |status: &str, description: &str| {
        let content = Content::new(Some(RefOr::Ref(utoipa::openapi::Ref::from_schema_name("Problem"))));
        let response = ResponseBuilder::new()
            .description(description)
            .content("application/problem+json", content)
            .build();
        operation.responses.responses.entry(status.to_owned()).or_insert(response.into());
    };
    add("400", "The request is malformed");
    add("401", "A token is missing, or not valid");
    add("403", "The role of the token, the host or the origin does not allow it");
    add("404", "There is no such thing");
    add("408", "The body did not arrive in time");
    add("409", "The settings or the state of the node do not allow it");
    add("412", "The rules have changed since");
    add("413", "The body is too long");
    add("422", "The request is well-formed, and its content is invalid");
    add("428", "`If-Match` is required");
    add("503", "Something that is needed to answer is unavailable");
}
