// Shows the OpenAPI document of this gateway. "Authorize" takes a token, which stays in the page.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#requests",
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null,
});
