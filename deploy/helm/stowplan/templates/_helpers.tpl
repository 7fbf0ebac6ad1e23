{{- define "stowplan.config" -}}
{{- if .Values.config }}{{ .Values.config }}{{ else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: {{ if eq .Values.mode "scheduler" }}stowplan{{ else }}default-scheduler{{ end }}
{{ end }}
{{- end }}

{{- /* Rules as JSON: of the values, or of the default plugins and others that the configuration names. */}}
{{- define "stowplan.rules" -}}
{{- $root := index . 0 }}{{- $account := index . 1 }}
{{- if $root.Values.rules }}{{ $root.Values.rules | toJson }}{{ else }}
{{- $permissions := $root.Files.Get "files/permissions.yaml" | fromYaml }}
{{- $rules := get $permissions $account }}
{{- range $plugin, $needed := $permissions.plugins }}
{{- if regexMatch (printf "name: *[\"']?%s\\b" $plugin) (include "stowplan.config" $root) }}
{{- $rules = concat $rules (get $needed $account) }}
{{- end }}
{{- end }}
{{- $rules | toJson }}
{{- end }}
{{- end }}
